"""Units are so small that most of the time of their collectives is a fixed cost."""

from dataclasses import dataclass
from statistics import median

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.reductions import MOST, tiny, total_bytes
from diagnostics.analysis.step_profile.units import MicroBatch
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import Costly, NotIt, cost_of, figure, judged, ruled_out, step_cause
from diagnostics.causes.overlap._units import GOOD_UNITS, no_units, per_step_ms
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.formatting import bytes_text

_MANY = 2 * GOOD_UNITS
"""Gathers of one forward pass from which on they are many."""
_BRIEF_NS = 100_000
"""Where sizes are unknown, a gather shorter than that is tiny."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyUnits(Costly):
    """How finely the parameters are cut."""

    count: int
    size_bytes: int
    """Of all; 0 = unknown."""
    blocks_per_unit: int
    """To advise."""

    def seen(self) -> str:
        """Return what was seen."""
        size = bytes_text(self.size_bytes / self.count) if self.size_bytes else "unknown size"
        return f"{self.count} gathers of {size} on average in a forward pass"

    def summary(self) -> str:
        """Return what is wrong."""
        return (
            f"Parameters are gathered in {self.count} tiny units; most of their time is the fixed cost of a "
            f"collective: up to {self.cost}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.override(
            f"strategy.blocks_per_unit={self.blocks_per_unit}",
            "fewer and larger gathers",
            "call `fully_shard` on groups of several blocks",
        )


@dataclass(frozen=True, slots=True)
class FewTiny(NotIt):
    """How many of the gathers are tiny."""

    tiny: int
    count: int

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"{self.tiny} of {self.count} gathers of a forward pass are tiny"


def decide(view: Overview) -> list[Finding]:
    """Decide it by number and size of the gathers of a forward pass."""
    cause = CAUSE.id
    if answer := no_units(view, cause):
        return answer
    calls = view.units.sample.gathers
    small = tiny(calls, _BRIEF_NS)
    if len(calls) < _MANY or small < MOST * len(calls):
        return [ruled_out(cause, FewTiny(small, len(calls)))]

    def gain(batch: MicroBatch) -> float:
        spared = len(batch.calls) * max(0.0, 1 - GOOD_UNITS / max(GOOD_UNITS, len(batch.gathers)))
        fixed = spared * min(view.latency_ns, median(call.transfer for call in batch.calls))
        return min(sum(call.exposed_transfer for call in batch.calls), fixed) if view.on_device else fixed

    facts = TinyUnits(
        cost=cost_of(view, per_step_ms(view, gain)),
        count=len(calls),
        size_bytes=total_bytes(calls),
        blocks_per_unit=max(2, (view.declared("strategy.blocks_per_unit") or 1) * len(calls) // GOOD_UNITS),
    )
    fixed = f"fixed cost of a collective about {figure(view.latency_ns / 1000)} us"
    return judged(view, cause, facts, facts.seen(), fixed)


CAUSE = step_cause(
    id="overlap.small_units",
    title="units are too small for their collectives",
    branch="slow.units",
    decide=decide,
    decided_from="traces: number and size of the gathers of a forward pass",
    remedy="strategy.blocks_per_unit=2 or more",
    example=example("tiny_units"),
)
