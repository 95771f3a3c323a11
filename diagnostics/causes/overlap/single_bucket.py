"""One reduction holds all gradients, so it can only start when the last gradient is there."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.reductions import MANY, MOST, StepReductions, large, share_of, total_bytes
from diagnostics.causes.overlap._buckets import bucket_cap, bucket_gain
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import (
    Costly,
    NotIt,
    cost_of,
    judged,
    no_backward,
    ruled_out,
    step_cause,
)
from diagnostics.contract.causes import ExplainedBy
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.formatting import bytes_text

_LATE = 0.75
"""Share of backward, before which a bucket that does not hold everything should have started."""
_FIRST_BUCKET_BYTES = 1 << 20
"""What DDP reduces first by default, so that communication starts early (Li et al. 2020): no one cuts smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBucket(Costly):
    """The reduction that holds everything."""

    size_bytes: int
    """0 = unknown."""
    cap_mb: float
    """`bucket_cap_mb` that would cut it well."""
    declared_cap_mb: float | None

    def seen(self) -> str:
        """Return what was seen."""
        return f"1 reduction of {bytes_text(self.size_bytes)}" if self.size_bytes else "1 reduction"

    def summary(self) -> str:
        """Return what is wrong."""
        declared = "" if self.declared_cap_mb is None else f" (bucket_cap_mb is {self.declared_cap_mb:g})"
        return (
            f"All gradients are reduced at once, when the last one is there{declared}, so nothing runs beside it: "
            f"up to {self.cost}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.override(
            f"strategy.bucket_cap_mb={self.cap_mb:g}",
            "the first buckets are reduced while backward still runs",
            f"pass `bucket_cap_mb={self.cap_mb:g}` to DistributedDataParallel",
        )


@dataclass(frozen=True, slots=True)
class SeveralReductions(NotIt):
    """How many reductions there are."""

    large: int
    total: int

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"{self.large} large reductions during backward, {self.total} in all"


@dataclass(frozen=True, slots=True)
class SmallModel(NotIt):
    """One reduction that is not larger than DDP's first bucket."""

    size_bytes: int

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"1 reduction of {bytes_text(self.size_bytes)}: DDP's own first bucket is not smaller"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the reductions of the last backward pass of each step."""
    cause = CAUSE.id
    if answer := no_backward(view, cause):
        return answer
    steps, last = view.reductions, view.reductions.sample.last()
    count = steps.typical(lambda step: len(large(step.last())))
    # In its very first step DDP reduces everything at once and cuts buckets after that, hence most of the steps.
    if not count or steps.typical(lambda step: float(_is_single(step))) <= 0.5:
        return [ruled_out(cause, SeveralReductions(round(count), len(last)))]
    size = total_bytes(last)
    if 0 < size <= _FIRST_BUCKET_BYTES:
        return [ruled_out(cause, SmallModel(size))]
    cap_mb, declared = bucket_cap(view, size)
    cost = steps.typical(lambda step: bucket_gain(view, step.last(), step.backward))
    facts = OneBucket(cost=cost_of(view, cost), size_bytes=size, cap_mb=cap_mb, declared_cap_mb=declared)
    begins = f"computing ends after {_begins(steps.sample):.0%} of backward, the rest waits for it"
    return judged(view, cause, facts, f"{facts.seen()} a step; {begins}")


def _begins(step: StepReductions) -> float:
    """Return when the largest reduction begins, as a share of backward."""
    calls = step.last()
    first, end = step.span
    if not calls or end <= first:
        return 0.0
    biggest = max(calls, key=lambda call: (share_of(call, calls), call.start))
    return min(1.0, max(0.0, (biggest.start - first) / (end - first)))


def _is_single(step: StepReductions) -> bool:
    calls = step.last()
    return (
        len(large(calls)) == 1
        and max(share_of(call, calls) for call in calls) >= MOST
        and len(calls) < MANY
        # One that carries everything waits for the last gradient, whatever share of backward its own wait then is.
        and (len(calls) == 1 or _begins(step) >= _LATE)
        and not any(call.message.op == "reduce_scatter" for call in calls)
    )


CAUSE = step_cause(
    id="overlap.single_bucket",
    title="one late reduction holds all gradients",
    branch="slow.reduction",
    decide=decide,
    decided_from="traces: number, size and start of the reductions of a backward pass",
    remedy="strategy.bucket_cap_mb=25",
    explained_by=(ExplainedBy(("overlap.root_only_wrapping",), ("any",)),),
    example=example("one_bucket"),
)
