"""Collectives run on the stream that computes, so none can overlap."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import (
    Costly,
    NoCollectives,
    NotIt,
    OnCpu,
    cost_of,
    exposed_ms,
    judged,
    matters,
    ruled_out,
    step_cause,
)
from diagnostics.contract.findings import Finding, Remedy

_SHARE = 0.5
"""Of the communication time that has to lie on the compute stream: what is left can still overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnComputeStream(Costly):
    """What runs on the stream that computes."""

    share: float
    """Of the communication time, 0 to 1."""
    count: int

    def seen(self) -> str:
        """Return what was seen."""
        return f"{self.share:.0%} of communication on the compute stream"

    def summary(self) -> str:
        """Return what is wrong."""
        return (
            f"{self.count} collectives a {self.cost.unit} run on the stream that computes, so none can overlap: "
            f"up to {self.cost}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.code(
            "issue the collectives with `async_op=True` (or on a stream of their own) and wait just before their "
            "result is used",
            "kernels on one stream run one after the other",
        )


@dataclass(frozen=True, slots=True)
class OtherStreams(NotIt):
    """Most communication runs elsewhere."""

    share: float

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"{self.share:.0%} of communication runs on the compute stream"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the streams of the collectives."""
    cause = CAUSE.id
    if not view.calls or not view.on_device:
        return [ruled_out(cause, OnCpu("streams") if view.calls else NoCollectives())]
    everything = sum(call.duration for call in view.calls)
    share = sum(call.duration for call in view.calls if _chosen(call)) / everything if everything else 0.0
    if share < _SHARE:
        return [ruled_out(cause, OtherStreams(share))]
    count = round(view.typical_count(lambda one: sum(map(_chosen, one.calls))))
    facts = OnComputeStream(cost=cost_of(view, exposed_ms(view, _chosen)), share=share, count=count)
    return judged(view, cause, facts, f"{share:.0%} of communication time lies on the compute stream")


def _chosen(call: CallProfile) -> bool:
    return call.on_compute and matters(call)


CAUSE = step_cause(
    id="overlap.same_stream",
    title="collectives run on the compute stream",
    branch="slow.order",
    decide=decide,
    decided_from="traces of GPUs: the streams of collectives and compute",
    remedy="a communication stream of its own, async_op=True",
    example=example("same_stream"),
)
