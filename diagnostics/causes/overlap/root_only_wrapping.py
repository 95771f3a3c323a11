"""Only the root is wrapped: all parameters are gathered as one unit before any compute."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile import attainable
from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.reductions import MOST, large, share_of, total_bytes
from diagnostics.analysis.step_profile.units import MicroBatch
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import Costly, cost_of, judged, ruled_out, step_cause
from diagnostics.causes.overlap._units import GOOD_UNITS, Gathers, no_units, per_step_ms
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.formatting import bytes_text

_FEW = 3
"""Gathers of a forward pass up to which one of them can be that of the root: buffers and embeddings may be apart."""
_FORWARD, _BACKWARD = 1 / 3, 2 / 3
"""Shares of the compute of a micro-batch: backward has twice the matrix products of forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneUnit(Costly):
    """The gather of everything."""

    gathers: int
    size_bytes: int
    """0 = unknown."""

    def seen(self) -> str:
        """Return what was seen."""
        return f"{self.gathers} gathers in a forward pass"

    def summary(self) -> str:
        """Return what is wrong."""
        size = " of " + bytes_text(self.size_bytes) if self.size_bytes else ""
        return (
            f"All parameters are gathered as one unit{size} before any compute: up to {self.cost}, and their whole "
            "memory at once."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.override(
            "strategy.blocks_per_unit=1",
            "each block is gathered while the one before it computes",
            "call `fully_shard` on every block before the root (FSDP1: an `auto_wrap_policy`)",
        )


def decide(view: Overview) -> list[Finding]:
    """Decide it by the gathers of a forward pass and the scatters of a backward pass."""
    cause = CAUSE.id
    if answer := no_units(view, cause):
        return answer
    sample, declared = view.units.sample, view.declared("strategy.blocks_per_unit")
    if view.units.typical(lambda batch: float(_is_root_only(batch))) < 0.5 or (
        isinstance(declared, int) and declared > 0
    ):
        return [ruled_out(cause, Gathers(len(sample.gathers)))]
    cost = cost_of(view, per_step_ms(view, lambda batch: _gain(view, batch)))
    facts = OneUnit(cost=cost, gathers=len(sample.gathers), size_bytes=total_bytes(sample.gathers))
    shown = f"{len(sample.gathers)} all_gather and {len(sample.scatters)} reduce_scatter a micro-batch"
    return judged(view, cause, facts, shown)


def _is_root_only(batch: MicroBatch) -> bool:
    gathers, big = batch.gathers, large(batch.gathers)
    return (
        len(big) == 1 and len(gathers) <= _FEW and share_of(big[0], gathers) >= MOST and len(large(batch.scatters)) <= 1
    )


def _gain(view: Overview, batch: MicroBatch) -> float:
    """Return what good units would win in one micro-batch, ns."""
    gained = 0.0
    for calls, part in ((batch.gathers, _FORWARD), (batch.again + batch.scatters, _BACKWARD)):
        if not calls:
            continue
        transfer = sum(call.transfer for call in calls)
        fixed = min(view.latency_ns, transfer / len(calls) / 4)
        pure = max(0.0, transfer - fixed * len(calls))
        best = attainable.exposed_in_units(pure, fixed, GOOD_UNITS, batch.compute * part)
        gained += max(0.0, sum(call.exposed_transfer for call in calls) - best)
    return gained


CAUSE = step_cause(
    id="overlap.root_only_wrapping",
    title="only the root is wrapped, so nothing overlaps",
    branch="slow.units",
    decide=decide,
    decided_from="traces: the gathers of a forward pass; configuration",
    remedy="strategy.blocks_per_unit=1",
    example=example("root_only"),
)
