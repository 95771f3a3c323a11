"""What the causes of a slow step share: when nothing is decided, what a cause costs, and how a remedy is given."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from diagnostics.analysis.step_profile.overview import SHARE, Overview, Unusable, overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.contract.causes import Cause, Example, ExplainedBy
from diagnostics.contract.findings import Cost, EvidenceItem, Facts, Finding, Remedy, Text, Where

ALL_RANKS = "a profiler trace of every rank (dtk: `record=full`)"
_NO_TRACE = "`record=full` (a dtk run), or `torch.profiler.profile` with `record_shapes=True` on every rank"
_SMALL_BYTES = 1024
"""Norms, losses and sizes that the next line needs are waited for by nature."""
_UNSPLIT_CONFIDENCE = 0.7
"""Of a cost that may hold waiting for late ranks as well."""


@dataclass(frozen=True, slots=True)
class Undecided(ABC):
    """Why the evidence does not decide it; `summary` and `missing` put it into words."""

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        return Text(summary=self.summary(), missing=self.missing())

    @abstractmethod
    def summary(self) -> str:
        """Return what the evidence does not tell."""

    def missing(self) -> str:
        """Return what would record it."""
        return _NO_TRACE


@dataclass(frozen=True, slots=True)
class NothingUsable(Undecided):
    """No trace, none that can be read, or one that an instrument spoilt."""

    why: Unusable

    def summary(self) -> str:
        """Return what the evidence does not tell."""
        return {
            "no_trace": "There is no profiler trace.",
            "unreadable": "No profiler trace could be used.",
            "instrumented": "The measurement itself destroys overlap, so nothing is concluded from this trace.",
        }[self.why]

    def missing(self) -> str:
        """Return what would record it."""
        return "a trace without it" if self.why == "instrumented" else _NO_TRACE


@dataclass(frozen=True, slots=True)
class PhasesUnknown(Undecided):
    """The trace does not show when forward and backward run."""

    def summary(self) -> str:
        """Return what the evidence does not tell."""
        return (
            "The trace does not show when forward and backward run, so the purpose of the collectives cannot be told."
        )

    def missing(self) -> str:
        """Return what would record it."""
        return "a profiler trace with CPU activity: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


@dataclass(frozen=True, slots=True)
class NotIt(ABC):
    """Figures that rule a cause out; `measured` puts them into words."""

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        return Text(summary=self.measured(), measured=self.measured())

    @abstractmethod
    def measured(self) -> str:
        """Return the value that rules it out."""


@dataclass(frozen=True, slots=True)
class NoCollectives(NotIt):
    """No collective was recorded."""

    def measured(self) -> str:
        """Return the value that rules it out."""
        return "0 collectives in the trace"


@dataclass(frozen=True, slots=True)
class OnCpu(NotIt):
    """The work runs on CPU, where this cause does not exist."""

    lacks: Literal["streams", "waits", "launches", "gathers", "instruments"]

    def measured(self) -> str:
        """Return the value that rules it out."""
        why = {
            "streams": "there are no streams",
            "waits": "waits leave no mark there",
            "launches": "no host waits for a device",
            "gathers": "gathers take the cores that compute needs",
            "instruments": "no launch can block",
        }[self.lacks]
        return f"the work runs on CPU: {why}"


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a cause costs of a step."""

    ms: float
    """At most the step."""
    step_ms: float
    unit: Literal["step", "window"]
    dtk_run: bool
    """Whether overrides of dtk apply."""

    def __str__(self) -> str:
        """Return `41 ms of 180 ms a step`."""
        return f"{figure(self.ms)} ms of {figure(self.step_ms)} ms a {self.unit}"

    def code(self, change: str, why: str) -> Remedy:
        """Return a change of the program."""
        return Remedy("code", change, why, f"at most {self}")

    def override(self, change: str, why: str, code: str) -> Remedy:
        """Return what to type for a dtk run, and what to change in any other program."""
        return Remedy("override", change, why, f"at most {self}") if self.dtk_run else self.code(code, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costly(ABC):
    """The facts of a cause that costs time of the step, whether or not it is worth a finding."""

    cost: StepCost

    def text(self, finding: Finding) -> Text:
        """Put it into words; below the share that is worth a finding, say so."""
        if finding.status == "ruled_out":
            measured = f"{self.seen()}: at most {self.cost}, below {SHARE:.0%}"
            return Text(summary=measured, measured=measured)
        return Text(summary=self.summary(), measured=str(self.cost), remedies=(self.remedy(),))

    @abstractmethod
    def seen(self) -> str:
        """Return what was seen, as a phrase."""

    @abstractmethod
    def summary(self) -> str:
        """Return what is wrong and what it costs."""

    @abstractmethod
    def remedy(self) -> Remedy:
        """Return how to fix it."""


def step_cause(
    *,
    id: str,
    title: str,
    branch: str,
    decide: Callable[[Overview], list[Finding]],
    decided_from: str,
    remedy: str,
    example: Example,
    explained_by: tuple[ExplainedBy, ...] = (),
    source: str = "",
) -> Cause[Overview]:
    """Return a cause that is undecided where nothing can be concluded from the traces."""

    def decide_usable(view: Overview) -> Sequence[Finding]:
        if view.unusable:
            return [undecided(id, NothingUsable(view.unusable))]
        return decide(view)

    return Cause(
        id=id,
        title=title,
        outcome="slow",
        branch=branch,
        facts=overview,
        decide=decide_usable,
        decided_from=decided_from,
        remedy=remedy,
        # Figures taken under an instrument that serialises say nothing about the run without it.
        explained_by=(*explained_by, ExplainedBy(("overlap.instrumented",), ("any",))),
        example=example,
        source=source,
    )


def cost_of(view: Overview, ms: float) -> StepCost:
    """Return a cost, which is at most the step."""
    dtk_run = view.run is not None and bool(view.run.config)
    return StepCost(max(0.0, min(ms, view.step_ms)), view.step_ms, view.unit, dtk_run)


def judged(
    view: Overview,
    cause: str,
    facts: Costly,
    *details: str,
    ranks: tuple[int, ...] | None = None,
    victims: tuple[int, ...] = (),
    confidence: float = 0.9,
    where: tuple[Where, ...] = (),
    of_transfer: bool = True,
) -> list[Finding]:
    """Confirm a cause whose cost is worth it, and rule it out otherwise.

    Args:
        view: all traces.
        cause: its id.
        facts: what it costs and what was seen.
        details: what the trace shows, for the evidence.
        ranks: to blame; default: all that were traced.
        victims: ranks that wait for them.
        confidence: 0 to 1.
        where: the source line in question.
        of_transfer: the cost is exposed transfer, which holds waiting as well while not all ranks were traced.
    """
    if not view.worth(facts.cost.ms):
        return [ruled_out(cause, facts)]
    items = list(details)
    if of_transfer and not view.split:
        items.append(f"{unsplit(view)}: waiting for late ranks is part of the cost")
        confidence = min(confidence, _UNSPLIT_CONFIDENCE)
    file = next((one.file for one in view.profiles if ranks and one.rank == ranks[0]), view.profiles[0].file)
    return [
        Finding(
            cause=cause,
            status="confirmed",
            facts=facts,
            confidence=confidence,
            ranks=view.ranks if ranks is None else ranks,
            victims=victims,
            where=where,
            cost=Cost(round(facts.cost.ms, 3), "ms per step" if view.unit == "step" else "ms per window"),
            evidence=tuple(EvidenceItem("trace", file, item) for item in items),
        )
    ]


def ruled_out(cause: str, facts: Facts) -> Finding:
    """Return a cause that is not it."""
    return Finding(cause=cause, status="ruled_out", facts=facts)


def undecided(cause: str, facts: Undecided) -> Finding:
    """Return a cause that the evidence cannot decide."""
    return Finding(cause=cause, status="undecided", confidence=0.0, facts=facts)


def no_backward(view: Overview, cause: str) -> list[Finding]:
    """Return the answer for a trace that does not show when backward runs; nothing where it does."""
    if view.reductions:
        return []
    return [undecided(cause, PhasesUnknown()) if view.calls else ruled_out(cause, NoCollectives())]


def unsplit(view: Overview) -> str:
    """Return why waiting cannot be told from transfer."""
    if len(view.profiles) < 2:
        return "one rank alone was traced"
    return "the ranks' collectives could not be matched" if view.skew.complete else "not all ranks were traced"


def exposed_ms(view: Overview, chosen: Callable[[CallProfile], bool]) -> float:
    """Return the exposed transfer of the chosen calls, ms a step: at most what there is compute to hide it."""
    return view.typical_ms(
        lambda one: min(sum(call.exposed_transfer for call in one.calls if chosen(call)), one.window.compute)
    )


def matters(call: CallProfile) -> bool:
    """Return whether a collective moves more than a few numbers that the next line needs."""
    size = call.message.size_bytes
    return not size or size > _SMALL_BYTES


def figure(value: float) -> str:
    """Return the three digits that matter."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
