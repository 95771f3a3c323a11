"""What the causes about units of sharded parameters share."""

from collections.abc import Callable
from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.units import MicroBatch
from diagnostics.causes.overlap._shared import NotIt, PhasesUnknown, ruled_out, undecided
from diagnostics.contract.findings import Finding

GOOD_UNITS = 8
"""Units of a model, from which on cutting it finer hides little more (FSDP's guidance: one unit per block or two)."""


@dataclass(frozen=True, slots=True)
class NotSharded(NotIt):
    """Parameters are not sharded."""

    def measured(self) -> str:
        """Return the value that rules it out."""
        return "parameters are not sharded: no all_gather with reduce_scatter"


@dataclass(frozen=True, slots=True)
class Gathers(NotIt):
    """How many gathers a forward pass has."""

    count: int

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"{self.count} gathers in a forward pass"


def no_units(view: Overview, cause: str) -> list[Finding]:
    """Return the answer for a job without units, or whose units the trace does not show; nothing where it does."""
    units = view.units
    if not units.sharded:
        return [ruled_out(cause, NotSharded())]
    if not units.phases:
        return [undecided(cause, PhasesUnknown())]
    if not any(batch.gathers for batches in units.batches.values() for batch in batches):
        return [ruled_out(cause, Gathers(0))]
    return []


def per_step_ms(view: Overview, amount: Callable[[MicroBatch], float]) -> float:
    """Return an amount of ns per micro-batch as ms per step."""
    return view.typical_ms(lambda one: sum(map(amount, view.units.batches[one.rank])))
