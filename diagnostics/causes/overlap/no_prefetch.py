"""The parameters of a unit are gathered only when compute needs them."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.state_calls import MicroBatch, hidden_share
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding

_NOT_AHEAD = 0.15
"""Share of the gathers' time overlapping compute up to which no gather ran ahead; the rest is edges of kernels."""
_LEAST_UNITS = 3  # Minimum number of gathers per forward pass; with fewer there is hardly a next unit.
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the share of the gathers' time that overlaps compute."""
    depth, units = view.declared("strategy.prefetch_depth"), view.units
    if depth != 0 and (answer := shared.on_cpu("cpu_cores")(view)):
        return answer
    if units.typical(lambda batch: len(batch.gathers)) < _LEAST_UNITS:
        return _TEXTS.ruled_out("few", count=len(units.sample.gathers))
    hidden = {"forward": units.typical(lambda batch: hidden_share(batch.gathers[1:]))}
    if units.sample.again:
        hidden["backward"] = units.typical(lambda batch: hidden_share(batch.again[1:]))
    phases = tuple(name for name, share in hidden.items() if share <= _NOT_AHEAD)
    if not phases:
        return _TEXTS.ruled_out("hidden", hidden=hidden["forward"])

    def to_hide(batch: MicroBatch) -> float:
        """Return the ns of these phases' gathers that could overlap compute; the first of a phase never can."""
        chosen = (batch.gathers[1:] if "forward" in phases else []) + (batch.again[1:] if "backward" in phases else [])
        free = batch.compute - sum(call.overlapped for call in batch.calls)
        return min(sum(call.exposed_transfer for call in chosen), max(0, free))

    gain, new_depth = view.per_batch_ms(to_hide), 2 if depth == 1 else 1
    facts = shared.costly(view, gain, _TEXTS, where=" and ".join(phases), hidden=hidden["forward"], depth=new_depth)
    return shared.judged(view, facts, _TEXTS.phrase("hidden", hidden=hidden_share(units.sample.gathers[1:])))


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_units,))
