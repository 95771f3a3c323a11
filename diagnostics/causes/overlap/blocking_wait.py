"""A collective is waited for at once, so compute that does not need its result stops as well."""

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
    figure,
    judged,
    matters,
    ruled_out,
    step_cause,
)
from diagnostics.contract.causes import ExplainedBy
from diagnostics.contract.findings import Finding, Remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedAtOnce(Costly):
    """Collectives that compute of their own phase waits for."""

    count: int
    ops: tuple[str, ...]

    def seen(self) -> str:
        """Return what was seen."""
        return f"{self.count} collectives waited for at once"

    def summary(self) -> str:
        """Return what is wrong."""
        return (
            f"Compute stops within forward or backward for {self.count} collectives a {self.cost.unit} "
            f"({', '.join(self.ops)}) and goes on only when they are over: up to {self.cost}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.code(
            "issue the collective earlier with `async_op=True` and call `wait()` just before its result is used; "
            "for tensor parallelism, use sequence parallelism or asynchronous TP; for all_to_all, two micro-batches",
            "compute that does not need the result can run meanwhile",
        )


@dataclass(frozen=True, slots=True)
class NoPhases(NotIt):
    """No collective has a phase."""

    def measured(self) -> str:
        """Return the value that rules it out."""
        return "no collective lies between two kernels of one phase that the trace could tell"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the collectives with compute of the same phase right behind them and none beside them."""
    cause, calls = CAUSE.id, view.calls
    if not calls or not view.on_device:
        return [ruled_out(cause, OnCpu("waits") if calls else NoCollectives())]
    if not view.units.phases:
        return [ruled_out(cause, NoPhases())]
    # What waits for the collectives of sharded parameters is judged with the units.
    apart = {"all_gather", "reduce_scatter"} if any(call.message.op == "reduce_scatter" for call in calls) else set()

    def chosen(call: CallProfile) -> bool:
        within = call.waited and not call.on_compute and call.phase in ("forward", "backward")
        return within and matters(call) and call.message.op not in apart

    count = view.typical_count(lambda one: sum(map(chosen, one.calls)))
    facts = WaitedAtOnce(
        cost=cost_of(view, exposed_ms(view, chosen)),
        count=round(count),
        ops=tuple(sorted({call.message.op for call in calls if chosen(call)})),
    )
    if count < 1:
        return [ruled_out(cause, facts)]
    shown = f"{facts.count} collectives a {view.unit} with nothing beside them, exposed {figure(facts.cost.ms)} ms"
    return judged(view, cause, facts, shown, confidence=0.8)


CAUSE = step_cause(
    id="overlap.blocking_wait",
    title="a collective is waited for at once",
    branch="slow.order",
    decide=decide,
    decided_from="traces: collectives with compute of the same phase right behind them and none beside them",
    remedy="wait where the result is needed; unset TORCH_NCCL_BLOCKING_WAIT",
    explained_by=(ExplainedBy(("overlap.unbucketed",), ("any",)),),
    example=example("tensor_parallel"),
)
