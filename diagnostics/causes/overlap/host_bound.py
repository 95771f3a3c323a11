"""The host launches too slowly: the device idles for a little while before many of its kernels."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._idle import idle_ms, others
from diagnostics.causes.overlap._shared import (
    Costly,
    NotIt,
    OnCpu,
    StepCost,
    cost_of,
    figure,
    judged,
    ruled_out,
    step_cause,
)
from diagnostics.contract.causes import ExplainedBy
from diagnostics.contract.findings import Finding, Remedy

_HOST_SHARE = 0.15
"""Of the step: below it a device that waits for launches is not limited by its host (healthy eager jobs reach 10 %)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateLaunches(Costly):
    """Idle time that is spread over many kernels."""

    kernels: int
    """A step."""
    kernel_us: float
    """On average."""
    compiled: bool | None
    """Whether the model is compiled; None = not known."""
    with_stack: bool
    """The profiler recorded stacks, which slows the host down."""

    def seen(self) -> str:
        """Return what was seen."""
        return "idle for late launches"

    def summary(self) -> str:
        """Return what is wrong."""
        stack = " The profiler recorded stacks, which slows the host down." if self.with_stack else ""
        return f"The device waits for its host to launch the next kernel: {self.cost}.{stack}"

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        graphs = "capture CUDA graphs; use fused optimizers; pin the process"
        if self.compiled:
            change = 'capture CUDA graphs (`torch.compile(mode="reduce-overhead")`), enlarge the batch, pin the process'
            return self.cost.code(change, "the model is compiled already; fewer launches need graphs or more work each")
        why = "fewer launches, and a host that runs ahead"
        if self.compiled is False and self.cost.dtk_run:
            return self.cost.override("train.compile=true", "fewer and longer kernels", graphs)
        return self.cost.code(f"`torch.compile` the model or {graphs}", why)


@dataclass(frozen=True, slots=True)
class HostKeepsUp(NotIt):
    """The device waits too little for launches."""

    cost: StepCost

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"idle for late launches {self.cost}, the host's limit begins at {_HOST_SHARE:.0%}"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the idle time before launches, without the few long pauses."""
    cause = CAUSE.id
    if not view.on_device:
        return [ruled_out(cause, OnCpu("launches"))]
    ranks, idle = idle_ms(view, "host")
    cost = cost_of(view, idle)
    if idle < _HOST_SHARE * view.step_ms or not view.worth(idle):
        return [ruled_out(cause, HostKeepsUp(cost))]
    first = next(one for one in view.profiles if one.rank == ranks[0])
    declared = view.declared("train.compile")
    facts = LateLaunches(
        cost=cost,
        kernels=round(first.kernels / max(1, len(first.steps))),
        kernel_us=first.kernel_ns / max(1, first.kernels) / 1000,
        compiled=True if declared or first.compiled else declared,
        with_stack=bool(view.profiles[0].settings.get("with_stack")),
    )
    shown = f"{facts.kernels} kernels a {view.unit} of {figure(facts.kernel_us)} us on average"
    victims = others(view, ranks)
    return judged(view, cause, facts, shown, ranks=ranks, victims=victims, confidence=0.85, of_transfer=False)


CAUSE = step_cause(
    id="overlap.host_bound",
    title="the host launches too slowly",
    branch="slow.idle",
    decide=decide,
    decided_from="traces with host events: idle time that is spread over the launches of a step",
    remedy="train.compile=true, a larger micro-batch, fewer small operations",
    explained_by=(ExplainedBy(("hang.host_stall", "overlap.sync_point"), ("ranks",)),),
    example=example("slow_launches"),
)
