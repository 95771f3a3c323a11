"""Only the root is wrapped: all parameters are gathered as one unit before any compute."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.state_calls import GOOD_UNITS, MOST, MicroBatch, large, share_of, total_bytes
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding
from diagnostics.contract.formatting import bytes_text

_FEW = 3  # Maximum number of gathers per forward pass if one is the root's: buffers and embeddings may be separate.
_FORWARD, _BACKWARD = 1 / 3, 2 / 3
"""Shares of the compute of a micro-batch: backward has twice the matrix products of forward."""
_FIXED = 0.25  # Maximum share of the transfer of such large gathers that is taken as latency.
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the gathers of a forward pass and the scatters of a backward pass."""
    sample, declared = view.units.sample, view.declared("strategy.blocks_per_unit")
    count, unknown = len(sample.gathers), view.run is not None and view.run.searches_blocks
    several = isinstance(declared, int) and declared > 0 and not unknown
    if several or not view.units.mostly(_is_root_only):
        return _TEXTS.ruled_out(count=count)
    gain = view.per_batch_ms(lambda batch: _gain(view, batch))
    size, case = total_bytes(sample.gathers), "blocks_unknown" if unknown else "default"
    of_size = f" of {bytes_text(size)}" if size else ""
    facts = shared.costly(view, gain, _TEXTS, case, gathers=count, of_size=of_size)
    shown = _TEXTS.phrase("shown", gathers=count, scatters=len(sample.scatters))
    return shared.judged(view, facts, shown)


def _is_root_only(batch: MicroBatch) -> bool:
    gathers, big = batch.gathers, large(batch.gathers)
    is_few = len(gathers) <= _FEW and len(large(batch.scatters)) <= 1
    return is_few and len(big) == 1 and share_of(big[0], gathers) >= MOST


def _gain(view: Overview, batch: MicroBatch) -> float:
    """Return the gain of good units in one micro-batch, in ns."""
    gained = 0.0
    for calls, part in ((batch.gathers, _FORWARD), (batch.again + batch.scatters, _BACKWARD)):
        if not calls:
            continue
        transfer = sum(call.transfer for call in calls)
        fixed = min(view.latency_ns, _FIXED * transfer / len(calls))
        pure = max(0.0, transfer - fixed * len(calls))
        best = shared.exposed_in_units(pure, fixed, GOOD_UNITS, batch.compute * part)
        gained += max(0.0, sum(call.exposed_transfer for call in calls) - best)
    return gained


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_units,))
