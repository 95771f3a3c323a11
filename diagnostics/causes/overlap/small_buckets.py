"""Gradients are reduced in many tiny buckets, so most of their time is the fixed cost of a collective."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from diagnostics.analysis.step_profile import attainable
from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.reductions import MANY, MOST, tiny, total_bytes
from diagnostics.causes.overlap._buckets import bucket_cap, bucket_gain
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import (
    Costly,
    NotIt,
    cost_of,
    figure,
    judged,
    no_backward,
    ruled_out,
    step_cause,
)
from diagnostics.contract.causes import ExplainedBy
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.formatting import bytes_text

_BRIEF_NS = 150_000
"""Where sizes are unknown, a reduction shorter than that is tiny: about 1 MiB at 7 GB/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyBuckets(Costly):
    """How finely the gradients are cut."""

    count: int
    size_bytes: int
    """Of all; 0 = unknown."""
    cap_mb: float
    declared_cap_mb: float | None

    def seen(self) -> str:
        """Return what was seen."""
        size = bytes_text(self.size_bytes / self.count) if self.size_bytes else "unknown size"
        return f"{self.count} reductions of {size} on average"

    def summary(self) -> str:
        """Return what is wrong."""
        declared = "" if self.declared_cap_mb is None else f" (bucket_cap_mb is {self.declared_cap_mb:g})"
        return (
            f"Gradients are reduced in {self.count} tiny portions{declared}; most of their time is the fixed cost of "
            f"a collective: up to {self.cost}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.override(
            f"strategy.bucket_cap_mb={self.cap_mb:g}",
            "fewer and larger reductions",
            f"raise `bucket_cap_mb` of DistributedDataParallel to {self.cap_mb:g}",
        )


@dataclass(frozen=True, slots=True)
class FewTiny(NotIt):
    """How many of the reductions are tiny."""

    tiny: int
    count: int

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"{self.tiny} of {self.count} reductions of a backward pass are tiny"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the reductions of the last backward pass of each step."""
    cause = CAUSE.id
    if answer := no_backward(view, cause):
        return answer
    steps = view.reductions
    calls = [call for call in steps.sample.last() if call.message.op == "all_reduce"]
    small, size = tiny(calls, _BRIEF_NS), total_bytes(calls)
    wanted = attainable.good_buckets(size)
    if len(calls) < MANY or small < MOST * len(calls) or len(calls) < 2 * wanted:
        return [ruled_out(cause, FewTiny(small, len(calls)))]
    cap_mb, declared = bucket_cap(view, size)
    facts = TinyBuckets(
        cost=cost_of(view, steps.typical(lambda step: _merge_gain(view, step.last(), step.backward))),
        count=len(calls),
        size_bytes=size,
        cap_mb=cap_mb,
        declared_cap_mb=declared,
    )
    fixed = f"fixed cost of a collective about {figure(view.latency_ns / 1000)} us"
    return judged(view, cause, facts, f"{facts.seen()}; {wanted} would do", fixed)


def _merge_gain(view: Overview, calls: Sequence[CallProfile], backward: int) -> float:
    """Return what fewer collectives would win, ms; never more than their fixed costs."""
    if not calls:
        return 0.0
    spared = max(0, len(calls) - attainable.good_buckets(total_bytes(calls)))
    fixed = spared * min(view.latency_ns, median(call.transfer for call in calls)) / MS
    return min(fixed, bucket_gain(view, calls, backward)) if view.on_device else fixed


CAUSE = step_cause(
    id="overlap.small_buckets",
    title="gradients are reduced in many tiny buckets",
    branch="slow.reduction",
    decide=decide,
    decided_from="traces: number and size of the reductions of a backward pass",
    remedy="strategy.bucket_cap_mb=25",
    explained_by=(ExplainedBy(("overlap.unbucketed",), ("any",)),),
    example=example("tiny_buckets"),
)
