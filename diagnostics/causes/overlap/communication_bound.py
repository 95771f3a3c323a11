"""There is more to communicate than compute to hide it, so no schedule can hide it."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.attainable import attainable_percent
from diagnostics.analysis.step_profile.overview import SHARE, Overview
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import (
    ALL_RANKS,
    Costly,
    NoCollectives,
    NotIt,
    StepCost,
    Undecided,
    cost_of,
    figure,
    judged,
    ruled_out,
    step_cause,
    undecided,
)
from diagnostics.contract.causes import ExplainedBy
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.strategy_traits import strategy_traits

_HEALTHY = 0.05
"""Exposed transfer below that share of the step is healthy, whatever the ratio."""
_NEAR_BOUND = 0.7
"""Of what is attainable, from which on a schedule counts as good."""
_BEYOND = 1.5
"""Transfer over compute from which on it is the bound, however good the schedule."""
_CPU_BEYOND = 2.0
"""On CPU transfers and compute take each other's cores and both look longer: there it has to be so much more."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How good the schedule is against the bound (times in ms a step)."""

    transfer_ms: float
    compute_ms: float
    reached: float
    """Overlap, percent."""
    best: float
    """Overlap that no schedule can exceed, percent."""

    def __str__(self) -> str:
        """Return the figures."""
        return (
            f"overlap {self.reached:.0f} % of at most {self.best:.0f} %, transfer {figure(self.transfer_ms)} ms, "
            f"compute {figure(self.compute_ms)} ms"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Costly):
    """Transfer that stays exposed in any schedule."""

    schedule: Schedule
    in_buckets: bool
    """Whether gradients travel in DDP's buckets."""
    batch: int
    """Global batch size; both of a dtk run only."""

    def seen(self) -> str:
        """Return what was seen."""
        return str(self.schedule)

    def summary(self) -> str:
        """Return what is wrong."""
        beyond = figure(max(0.0, self.schedule.transfer_ms - self.schedule.compute_ms))
        return (
            f"There is more to communicate than compute to hide it; {beyond} ms a {self.cost.unit} would stay exposed "
            f"in any schedule ({self.schedule})."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.override(
            "strategy.communication_hook=bf16" if self.in_buckets else f"train.global_batch_size={2 * self.batch}",
            "less is sent for the same compute",
            "reduce in bf16, accumulate more micro-batches between reductions, or shard inside a node only (HSDP)",
        )


@dataclass(frozen=True, slots=True)
class BelowBound(NotIt):
    """The schedule leaves time exposed that a better one would hide; other causes say which."""

    schedule: Schedule

    def measured(self) -> str:
        """Return the value that rules it out."""
        return str(self.schedule)


@dataclass(frozen=True, slots=True)
class LittleExposed(NotIt):
    """Hardly any transfer is exposed."""

    cost: StepCost

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"exposed transfer {self.cost}, healthy below {max(SHARE, _HEALTHY):.0%}"


@dataclass(frozen=True, slots=True)
class WaitingInside(Undecided):
    """Waiting for late ranks cannot be told from transfer."""

    exposed_ms: float
    schedule: Schedule

    def summary(self) -> str:
        """Return what the evidence does not tell."""
        exposed = figure(self.exposed_ms)
        return f"One rank alone: its {exposed} exposed ms hold waiting as well as transfer ({self.schedule})."

    def missing(self) -> str:
        """Return what would record it."""
        return ALL_RANKS


@dataclass(frozen=True, slots=True)
class Crowded(Undecided):
    """Ranks share the cores of a CPU."""

    ranks: int
    cores: int
    schedule: Schedule

    def summary(self) -> str:
        """Return what the evidence does not tell."""
        return (
            f"{self.ranks} ranks share {self.cores} cores, so a transfer that waits for a core looks like one that "
            f"takes long ({self.schedule})."
        )

    def missing(self) -> str:
        """Return what would record it."""
        return "a trace of as many ranks as there are cores, or of the machine that the job is meant for"


def decide(view: Overview) -> list[Finding]:
    """Decide it by exposed transfer, and transfer against compute."""
    cause = CAUSE.id
    if not view.calls:
        return [ruled_out(cause, NoCollectives())]
    exposed = view.typical_ms(lambda one: sum(call.exposed_transfer for call in one.calls))
    transfer = view.typical_ms(lambda one: sum(call.transfer for call in one.calls))
    compute = view.typical_ms(lambda one: one.window.compute)
    if exposed < max(SHARE, _HEALTHY) * view.step_ms or not view.step_ms:
        return [ruled_out(cause, LittleExposed(cost_of(view, exposed)))]
    reached = 100 * (1 - exposed / transfer) if transfer else 100.0
    schedule = Schedule(transfer, compute, reached, attainable_percent(transfer, compute))
    if not view.split:
        return [undecided(cause, WaitingInside(exposed, schedule))]
    near = reached >= _NEAR_BOUND * schedule.best or (view.on_device and transfer >= _BEYOND * compute)
    if not near or transfer <= (1.0 if view.on_device else _CPU_BEYOND) * compute:
        return [ruled_out(cause, BelowBound(schedule))]
    if view.crowded:
        return [undecided(cause, Crowded(*view.crowded, schedule))]
    facts = Bound(
        cost=cost_of(view, exposed),
        schedule=schedule,
        in_buckets=view.run is not None
        and strategy_traits(view.run.manifest, view.run.config).gradients_in == "buckets",
        batch=view.declared("train.global_batch_size") or 1,
    )
    return judged(view, cause, facts, str(schedule), confidence=0.8)


CAUSE = step_cause(
    id="overlap.communication_bound",
    title="more is communicated than there is compute to hide it",
    branch="slow.bound",
    decide=decide,
    decided_from="traces of two ranks or more: transfer without waiting, against compute",
    remedy="fewer bytes (bfloat16, HSDP), a larger micro-batch, sharding inside the node",
    # What wins time by a change of the program comes before the bound of the hardware.
    explained_by=(
        ExplainedBy(
            (
                "overlap.accumulation_sync",
                "overlap.single_bucket",
                "overlap.small_buckets",
                "overlap.unbucketed",
                "overlap.same_stream",
                "overlap.blocking_wait",
                "overlap.root_only_wrapping",
                "overlap.no_prefetch",
                "overlap.small_units",
                "env.wrong_interface",
                "env.ib_disabled",
                "env.p2p_disabled",
                "env.contradiction",
            ),
            ("any",),
        ),
    ),
    example=example("bound"),
)
