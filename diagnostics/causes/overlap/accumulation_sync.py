"""Gradients are reduced in every micro-batch, although only the last one needs it."""

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.state_calls import StepReductions, total_bytes
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding

_REPEATED = 0.5
"""Minimum share of the last micro-batch's reductions, by count and by bytes, that each earlier one repeats."""
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the reductions of each micro-batch."""
    steps = view.reductions
    micros = round(steps.typical(lambda step: step.micros))
    if micros < 2:
        return _TEXTS.ruled_out("no_accumulation", micros=micros)
    if not steps.typical(lambda step: len(_needless(step))):
        return _TEXTS.ruled_out("once", micros=micros)
    updated = round(steps.typical(lambda step: step.updated))
    figures = {"updated": updated, "passes": micros, "unit": view.unit}
    if updated >= micros:
        return _TEXTS.ruled_out("steps", **figures)
    if updated > 1:
        return _TEXTS.undecided("some_steps", **figures)
    if updated == 0 and view.unit == "window":
        return _TEXTS.undecided("unknown_steps", **figures)
    # On CPU, transfers use the cores that compute needs, so all of the transfer counts.
    cost = steps.typical(
        lambda step: sum(call.exposed_transfer if view.on_device else call.transfer for call in _needless(step)) / MS
    )
    needless = _needless(steps.sample)
    facts = shared.costly(
        view,
        cost,
        _TEXTS,
        "sharded" if any(call.message.op == "reduce_scatter" for call in needless) else "default",
        micros=micros,
        whole_batch_size=(view.declared("train.micro_batch_size") or 1) * micros,
    )
    size = total_bytes(needless)
    shown = _TEXTS.phrase("shown", count=len(needless), all=len(steps.sample.inside), size=size)
    more = [_TEXTS.phrase("for_nothing", size=size)] if size else []
    return shared.judged(view, facts, shown, *more)


def _needless(step: StepReductions) -> list[CallProfile]:
    """Return the reductions before the last micro-batch, if they repeat those of the last one."""
    last, early = step.last(), [call for call in step.inside if call.micro < step.micros - 1]
    least = _REPEATED * (step.micros - 1)
    if not last or len(early) < least * len(last):
        return []
    early_bytes, last_bytes = (sum(call.message.size_bytes for call in calls) for calls in (early, last))
    return early if early_bytes >= least * last_bytes else []


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_backward,))
