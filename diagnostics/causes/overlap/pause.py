"""The host pauses: a few long stretches without a launch hold nearly all of the idle time."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap._examples import LATE, example
from diagnostics.causes.overlap._idle import idle_ms, occupation, others
from diagnostics.causes.overlap._shared import Costly, OnCpu, cost_of, figure, judged, ruled_out, step_cause
from diagnostics.contract.causes import ExplainedBy
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.formatting import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses(Costly):
    """Long stretches in which the host launched nothing."""

    count: int
    longest_ms: float
    within: str
    """The innermost operation or annotation around most of that time; empty = none is recorded."""

    def seen(self) -> str:
        """Return what was seen."""
        return "idle in pauses of the host"

    def summary(self) -> str:
        """Return what is wrong."""
        within = f", most of it within {self.within}" if self.within else "; the trace does not show what it does then"
        return (
            f"The host pauses and the device idles: {self.cost} in few long stretches (the longest "
            f"{figure(self.longest_ms)} ms){within}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        look = f"look at what the host does within {self.within}"
        if not self.within:
            look = "record stacks (`with_stack=True`) and look at what the host does in the longest gap"
        return self.cost.code(
            f"{look} (garbage collection, a checkpoint, logging, a request) and take it out of the step",
            "launches go on only when it is over",
        )


def decide(view: Overview) -> list[Finding]:
    """Decide it by the idle time in the few longest stretches of each step."""
    cause = CAUSE.id
    if not view.on_device:
        return [ruled_out(cause, OnCpu("launches"))]
    ranks, idle = idle_ms(view, "pause")
    within, count = occupation(view, ranks, "pause")
    lengths = [gap.length for one in view.profiles if one.rank in ranks for gap in one.gaps if gap.reason == "pause"]
    facts = Pauses(cost=cost_of(view, idle), count=count, longest_ms=max(lengths, default=0) / 1e6, within=within)
    shown = f"{counted(count, 'pause')}, the longest {figure(facts.longest_ms)} ms"
    victims = others(view, ranks)
    return judged(view, cause, facts, shown, ranks=ranks, victims=victims, confidence=0.85, of_transfer=False)


CAUSE = step_cause(
    id="overlap.pause",
    title="the host pauses",
    branch="slow.idle",
    decide=decide,
    decided_from="traces with host events: a few long stretches that hold nearly all of the idle time of a step",
    remedy="take what the host does in the pause out of the step",
    explained_by=(ExplainedBy(("hang.host_stall", "overlap.sync_point"), ("ranks",)),),
    example=example("late_host", (LATE,)),
)
