"""The step waits for the data loader."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._idle import idle_ms, occupation, others
from diagnostics.causes.overlap._shared import Costly, NotIt, StepCost, cost_of, judged, ruled_out, step_cause
from diagnostics.contract.causes import ExplainedBy
from diagnostics.contract.findings import Finding, Remedy

_CPU_SHARE = 0.1
"""On CPU the loader's workers take the cores of the step, so less than that is no wait for data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForData(Costly):
    """What the host waits in."""

    within: str

    def seen(self) -> str:
        """Return what was seen."""
        return "idle while the host waits for data"

    def summary(self) -> str:
        """Return what is wrong."""
        return f"The step waits for its data ({self.within}): {self.cost}."

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.code(
            "give the DataLoader more `num_workers`, `prefetch_factor=4`, `persistent_workers=True` and "
            "`pin_memory=True`",
            "batches are then ready before they are needed",
        )


@dataclass(frozen=True, slots=True)
class LittleOnCpu(NotIt):
    """Too little for a run on CPU."""

    cost: StepCost

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"waiting for data {self.cost}, on CPU below {_CPU_SHARE:.0%}"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the idle time within the data loader."""
    cause = CAUSE.id
    ranks, idle = idle_ms(view, "data")
    if view.worth(idle) and not view.on_device and idle < _CPU_SHARE * view.step_ms:
        return [ruled_out(cause, LittleOnCpu(cost_of(view, idle)))]
    within, _ = occupation(view, ranks, "data")
    facts = WaitsForData(cost=cost_of(view, idle), within=within)
    shown = f"the device idles while the host stands in {within}"
    return judged(view, cause, facts, shown, ranks=ranks, victims=others(view, ranks), of_transfer=False)


CAUSE = step_cause(
    id="overlap.data_bound",
    title="the step waits for the data loader",
    branch="slow.idle",
    decide=decide,
    decided_from="traces, or spans with the data region: idle time within the data loader",
    remedy="more workers, prefetching, faster storage",
    explained_by=(ExplainedBy(("hang.host_stall",), ("ranks",)),),
    example=example("loader"),
)
