"""What the causes of a slow step share: when nothing is decided, what a cause costs, and how a remedy is given."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.step_profile.overview import SHARE, Overview, Unusable, overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.causes.declared import declared
from diagnostics.contract import findings
from diagnostics.contract.causes import Cause
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Remedy, Text, Where
from diagnostics.contract.formatting import filled

ALL_RANKS = "a profiler trace of every rank (dtk: `record=full`)"
_NO_TRACE = "`record=full` (a dtk run), or `torch.profiler.profile` with `record_shapes=True` on every rank"
_UNUSABLE: dict[Unusable, tuple[str, str]] = {
    "no_trace": ("There is no profiler trace.", _NO_TRACE),
    "unreadable": ("No profiler trace could be used.", _NO_TRACE),
    "instrumented": (
        "The measurement itself destroys overlap, so nothing is concluded from this trace.",
        "a trace without it",
    ),
}
_SMALL_BYTES = 1024
"""Norms, losses and sizes that the next line needs are waited for by nature."""
_UNSPLIT_CONFIDENCE = 0.7
"""Of a cost that may hold waiting for late ranks as well."""
Guard = Callable[[Overview], Finding | None]
"""Returns the answer where the question does not arise, or the evidence cannot answer it."""


class StepCost(Struct, frozen=True):
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


class Words(Struct, frozen=True):
    """A cause in words."""

    seen: str
    """What was seen, as a phrase, for a cost that is not worth a finding."""
    summary: str
    change: str
    """What to change in a program."""
    why: str
    override: str = ""
    """What to type instead for a run of dtk; empty = the program has to change there too."""


class Costly(Struct, frozen=True):
    """The figures of a cause that costs time of the step, whether or not it is worth a finding."""

    cost: StepCost
    words: Callable[..., Words]
    """Takes the cost and the figures."""
    figures: dict[str, Any]

    def text(self, finding: Finding) -> Text:
        """Put it into words; below the share that is worth a finding, say so."""
        words = self.words(self.cost, **self.figures)
        if finding.status == "ruled_out":
            measured = f"{words.seen}: at most {self.cost}, below {SHARE:.0%}"
            return Text(summary=measured, measured=measured)
        remedy = Remedy("code", words.change, words.why, f"at most {self.cost}")
        if words.override and self.cost.dtk_run:
            remedy = replace(remedy, kind="override", change=words.override)
        return Text(summary=words.summary, measured=str(self.cost), remedies=(remedy,))


def costly(view: Overview, ms: float, words: Callable[..., Words], /, **figures: Any) -> Costly:
    """Return the facts of a cause that costs so many ms of a step, at most the step.

    Args:
        view: all traces.
        ms: the cost.
        words: puts the cost and the figures into words when the report is made.
        figures: what `words` takes by name.
    """
    dtk_run = view.run is not None and bool(view.run.config)
    return Costly(StepCost(max(0.0, min(ms, view.step_ms)), view.step_ms, view.unit, dtk_run), words, figures)


def words_beside(file: str) -> Callable[..., Words]:
    """Return what fills in the texts of the YAML file beside a cause: with its cost and its figures, in one case."""
    table = table_beside(file)

    def words(cost: StepCost, case: str = "words", **figures: object) -> Words:
        return Words(**{name: filled(text, {"cost": cost, **figures}) for name, text in table[case].items()})

    return words


def step_cause(
    file: str, decide: Callable[[Overview], Finding], unless: Sequence[Guard] = (), despite_instrument: bool = False
) -> Cause[Overview]:
    """Return a cause that `decide` decides where the traces can be used and no guard answers before it.

    Findings get the cause's id here. Nothing is concluded from traces that an instrument spoilt, but the instrument.
    """

    def decide_usable(view: Overview) -> Sequence[Finding]:
        if view.unusable and not (despite_instrument and view.unusable == "instrumented"):
            sentence, missing = _UNUSABLE[view.unusable]
            answer: Finding | None = undecided(sentence, missing)
        else:
            answer = next(filter(None, (guard(view) for guard in unless)), None)
        return [replace(answer or decide(view), cause=cause.id)]

    cause = declared(file, overview, decide_usable)
    return cause


def judged(
    view: Overview,
    facts: Costly,
    *details: str,
    ranks: tuple[int, ...] | None = None,
    victims: tuple[int, ...] = (),
    confidence: float = 0.9,
    where: tuple[Where, ...] = (),
    of_transfer: bool = True,
) -> Finding:
    """Confirm a cause whose cost is worth it, and rule it out otherwise.

    Args:
        view: all traces.
        facts: what it costs and what was seen.
        details: what the trace shows, for the evidence.
        ranks: to blame; default: all that were traced.
        victims: ranks that wait for them.
        confidence: 0 to 1.
        where: the source line in question.
        of_transfer: the cost is exposed transfer, which holds waiting as well while not all ranks were traced.
    """
    if not view.worth(facts.cost.ms):
        return Finding(cause="", status="ruled_out", facts=facts)
    items = list(details)
    if of_transfer and not view.split:
        items.append(f"{unsplit(view)}: waiting for late ranks is part of the cost")
        confidence = min(confidence, _UNSPLIT_CONFIDENCE)
    files = {profile.rank: profile.file for profile in view.profiles}
    file = files.get(ranks[0] if ranks else -1, view.profiles[0].file)
    return Finding(
        cause="",
        status="confirmed",
        facts=facts,
        confidence=confidence,
        ranks=view.ranks if ranks is None else ranks,
        victims=victims,
        where=where,
        cost=Cost(round(facts.cost.ms, 3), "ms per step" if view.unit == "step" else "ms per window"),
        evidence=tuple(EvidenceItem("trace", file, item) for item in items),
    )


ruled_out = partial(findings.ruled_out, "")
"""Returns that it is not the cause; `step_cause` adds its id."""
undecided = partial(findings.undecided, "")
"""Returns that the evidence does not decide it; `step_cause` adds the cause's id."""


def no_collectives(view: Overview) -> Finding | None:
    """Return the answer for a trace without collectives."""
    return None if view.calls else ruled_out("0 collectives in the trace")


def no_backward(view: Overview) -> Finding | None:
    """Return the answer for a trace that does not show when backward runs."""
    return None if view.reductions else no_collectives(view) or phases_unknown()


def no_units(view: Overview) -> Finding | None:
    """Return the answer for a job without sharded units, or whose units the trace does not show."""
    units = view.units
    if not units.sharded:
        return ruled_out("parameters are not sharded: no all_gather with reduce_scatter")
    if not units.phases:
        return phases_unknown()
    if not any(batch.gathers for batches in units.of_rank.values() for batch in batches):
        return ruled_out("0 gathers in a forward pass")
    return None


def on_cpu(why: str) -> Guard:
    """Return a guard against causes that do not exist on CPU."""
    return lambda view: None if view.on_device else ruled_out("the work runs on CPU: {why}", why=why)


def phases_unknown() -> Finding:
    """Return that the purpose of collectives is not known."""
    return undecided(
        "The trace does not show when forward and backward run, so the purpose of the collectives cannot be told.",
        "a profiler trace with CPU activity: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    )


def unsplit(view: Overview) -> str:
    """Return why waiting cannot be told from transfer."""
    if len(view.profiles) < 2:
        return "one rank alone was traced"
    return "the ranks' collectives could not be matched" if view.skew.complete else "not all ranks were traced"


def exposed_ms(view: Overview, chosen: Callable[[CallProfile], bool]) -> float:
    """Return the exposed transfer of the chosen calls, ms a step: at most what there is compute to hide it."""
    return view.typical_ms(
        lambda profile: min(
            sum(call.exposed_transfer for call in profile.calls if chosen(call)), profile.window.compute
        )
    )


def matters(call: CallProfile) -> bool:
    """Return whether a collective moves more than a few numbers that the next line needs."""
    size = call.message.size_bytes
    return not size or size > _SMALL_BYTES


def others(view: Overview, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the traced ranks that are not among these."""
    return tuple(rank for rank in view.ranks if rank not in ranks)


def figure(value: float) -> str:
    """Return the three digits that matter."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
