"""A finding: what is decided about a cause, as typed data. Sentences are made when the report is written."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Concatenate, Literal, ParamSpec, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.formatting import Phrase

_P = ParamSpec("_P")
Status = Literal["confirmed", "ruled_out", "undecided"]
Outcome = Literal["healthy", "hung", "oom", "slow", "crashed", "diverged", "at_risk", "undecided"]
"""What happened to the run as a whole."""
Unit = Literal["s blocked", "bytes", "ms per step", "ms per window", "steps lost", "none"]


SURE = 0.5
"""Confidence below which a finding is never a root cause. Measured (`benchmarks/log_corpus.py`): of what is claimed
with less, one of three is right; from 0.5 on 15 of 15."""


class Where(Struct, frozen=True):
    """A source line: the innermost frame outside torch and the interpreter's own files."""

    rank: int | None
    file: str
    line: int
    function: str = ""
    does: str | Phrase = ""
    """What the rank does there: `all_reduce [1024] float32`, `waits in queue.get`."""


class EvidenceItem(Struct, frozen=True):
    """One thing seen, and where a reader can look it up."""

    kind: str
    """`flight`, `trace`, `log`, `stacks`, `error`, `heartbeat`, `config`, `snapshot`, `timeline`, `environment`."""
    file: str
    """Relative to the diagnosed path."""
    detail: str | Phrase
    """What is quoted, or a row of the cause's texts with its figures, of which the report makes the words."""
    line: int | None = None


class Remedy(Struct, frozen=True):
    """A change that fixes it: an override for dtk's runs, code at a place for others, a variable."""

    kind: Literal["override", "code", "environment"]
    change: str
    """What to type: `strategy.bucket_cap_mb=25`; for code a sentence that names file:line."""
    why: str
    saves: str = ""
    """What it wins at most: `3.1 GiB of 14.8 GiB`, `41 ms of 180 ms a step`."""


class Group(Struct, frozen=True):
    """A process group: the one in question, or one that a rank belongs to."""

    name: str
    """torch's own: equal on all members that made their groups in the same order."""
    ranks: tuple[int, ...]
    """Global, by rank in the group; empty when unknown."""
    desc: str = ""


class Cost(Struct, frozen=True):
    """What the cause costs; of a remedy it is a ceiling, not a promise."""

    value: float
    unit: Unit


class Text(Struct, frozen=True):
    """A finding in words, made when the report is written. They are facts as well, of a user's own detector."""

    summary: str
    """One or two sentences for the user. Undecided: what the evidence does not tell."""
    measured: str = ""
    """The value at this edge of the tree: `0 of 3,120 positions differ`, `exposed 41 ms of 180 ms`."""
    missing: str = ""
    """Undecided only: the override, variable or file that would record what is missing."""
    remedies: tuple[Remedy, ...] = ()
    """The best first."""

    @property
    def claim(self) -> str:
        """The first sentence of the summary as a clause."""
        return self.summary.partition(". ")[0].rstrip(".")

    def text(self, finding: "Finding") -> "Text":
        """Return the words as they were given."""
        return self


Stated = Text


class Facts(Protocol):
    """What a finding rests on: a frozen dataclass of figures, calls, sites and names, defined beside its cause."""

    def text(self, finding: "Finding") -> Text:
        """Return the finding in words. The text depends only on these facts and the finding."""
        ...


class Worded(Struct, frozen=True):
    """Figures of a finding, and the function that puts them into words: made by `worded`."""

    words: "Callable[..., Text]"
    figures: Mapping[str, Any]

    def text(self, finding: "Finding") -> Text:
        """Put the figures into words."""
        return self.words(finding, **self.figures)


def worded(words: "Callable[Concatenate[Finding, _P], Text]", /, *args: _P.args, **figures: _P.kwargs) -> Worded:
    """Return facts of the figures that `words` takes, all of them named."""
    if args:
        raise TypeError("figures are named, so that a report can hold them")
    return Worded(words, figures)


class Finding(Struct, frozen=True, kw_only=True, dict=True):
    """One decided cause (ids: docs/causes.md)."""

    cause: str = ""
    """Given by the declaration of a cause; a user's own detector gives it itself."""
    status: Status
    facts: Facts
    """What was measured or seen, of which `text_of` makes the sentences."""
    injected: str = ""
    """The fault that was injected into the run, in a confirmed finding of such a run."""
    confidence: float = 1.0
    """0 to 1: 1 = proven by the evidence itself; below `SURE` it is never a root cause."""
    ranks: tuple[int, ...] = ()
    """To blame, ascending. A tie is all of them, and the summary says that it is a tie."""
    victims: tuple[int, ...] = ()
    group: Group | None = None
    position: int | None = None
    """Sequence number within the group."""
    step: int | None = None
    where: tuple[Where, ...] = ()
    """Both sides of a mismatch; the blamed rank first."""
    cost: Cost | None = None
    evidence: tuple[EvidenceItem, ...] = ()

    @cached_property
    def _text(self) -> Text:
        """Made once: findings are sorted, evaluated and shown by their words."""
        text = self.facts.text(self)
        if self.injected and not any(remedy.kind == "override" for remedy in text.remedies):
            why = f"the fault {self.injected} was injected into this run"
            text = replace(text, remedies=(Remedy("override", "fault=none", why), *text.remedies))
        return text


def text_of(finding: Finding) -> Text:
    """Return the finding in words. Where no override fixes an injected fault, the first remedy removes it."""
    return finding._text


class Suspicion(Struct, frozen=True):
    """A cause that nothing confirms, and how likely it is by what the evidence shows."""

    cause: str
    probability: float
    """0 to 1, over all causes that come into question (`benchmarks/log_corpus.py` prints how often it is right)."""
    ranks: tuple[int, ...] = ()
    """Whom it would blame; empty = not known."""
    speaks_for: tuple[str, ...] = ()
    speaks_against: tuple[str, ...] = ()
    decide: str = ""
    """What to run or to collect, so that it is confirmed or ruled out; needs nothing of dtk in the job."""


class Detection(Struct):
    """What one detector gives."""

    findings: list[Finding]
    measures: dict[str, Any] = field(default_factory=dict)
    """JSON values for `report.measures`, under the detector's own key (`overlap`, `memory`, `hang`)."""


class Detector(Protocol):
    """Built in, or a user's own by the entry point `dtk.detectors`."""

    name: str
    causes: tuple[str, ...]
    """Ids that it decides; it returns at least one finding for each."""

    def detect(self, evidence: Any) -> Detection:
        """Decide every cause. Never raises on odd evidence: what cannot be read is `undecided`."""
        ...
