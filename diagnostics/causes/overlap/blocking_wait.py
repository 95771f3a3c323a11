"""A collective is waited for immediately, so compute that does not need its result is blocked as well."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import PROBABLE, Finding

_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from collectives that are followed by compute of the same phase and overlap with none."""
    if not view.units.phases:
        return _TEXTS.ruled_out()
    # Waits for the collectives of sharded parameters are judged with the units.
    is_sharded = any(call.message.op == "reduce_scatter" for call in view.calls)
    other_ops = {"all_gather", "reduce_scatter"} if is_sharded else set()

    def chosen(call: CallProfile) -> bool:
        within = call.waited and not call.on_compute and call.phase in ("forward", "backward")
        return within and shared.matters(call) and call.message.op not in other_ops

    count = view.typical_count(lambda profile: sum(map(chosen, profile.calls)))
    ops = ", ".join(sorted({call.message.op for call in view.calls if chosen(call)}))
    exposed = shared.exposed_ms(view, chosen) if count >= 1 else 0.0
    shown = _TEXTS.phrase("shown", count=round(count), unit=view.unit, exposed=exposed)
    facts = shared.costly(view, exposed, _TEXTS, count=round(count), ops=ops)
    return shared.judged(view, facts, shown, confidence=PROBABLE)


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_collectives, shared.on_cpu("cpu_marks")))
