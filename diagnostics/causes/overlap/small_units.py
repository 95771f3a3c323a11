"""Units are so small that most of the time of their collectives is the fixed cost."""

from statistics import median

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.state_calls import GOOD_UNITS, MOST, MicroBatch, tiny, total_bytes
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding

_MANY = 2 * GOOD_UNITS  # Number of gathers per forward pass from which they are many.
_BRIEF_NS = 100_000  # Duration below which a gather of unknown size is tiny.
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the number and size of the gathers of a forward pass."""
    calls = view.units.sample.gathers
    count, small, size = len(calls), tiny(calls, _BRIEF_NS), total_bytes(calls)
    if count < _MANY or small < MOST * count:
        return _TEXTS.ruled_out(tiny=small, count=count)

    def gain(batch: MicroBatch) -> float:
        spared = len(batch.calls) * max(0.0, 1 - GOOD_UNITS / max(GOOD_UNITS, len(batch.gathers)))
        fixed = spared * min(view.latency_ns, median(call.transfer for call in batch.calls))
        return min(sum(call.exposed_transfer for call in batch.calls), fixed) if view.on_device else fixed

    blocks = max(2, (view.declared("strategy.blocks_per_unit") or 1) * count // GOOD_UNITS)
    seen = _TEXTS.phrase("shown", seen=shared.portions(count, "gathers", size))
    facts = shared.costly(view, view.per_batch_ms(gain), _TEXTS, seen=seen, count=count, blocks_per_unit=blocks)
    return shared.judged(view, facts, seen, shared.TEXTS.phrase("fixed_cost", us=view.latency_ns / 1000))


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_units,))
