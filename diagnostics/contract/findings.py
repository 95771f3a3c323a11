"""A finding: the decision about a cause, as typed data. Text is generated when the report is written."""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import Phrase

Status = Literal["confirmed", "ruled_out", "undecided"]
Outcome = Literal["healthy", "hung", "oom", "slow", "crashed", "diverged", "at_risk", "undecided"]
"""Outcome of the whole run."""
Basis = Literal["records", "messages", "places", "waiting"]
"""What a finding rests on, the best first: recorded calls and endings; messages, such as a size that gloo printed or a
send that no rank can receive; the places at which ranks stand, without their earlier calls; that ranks wait."""
Unit = Literal["s blocked", "bytes", "ms per step", "ms per window", "steps lost", "none"]

# How sure a confirmed finding is: the levels of all causes, by what else leaves the same evidence. They order findings.
# They are cautious: in 151 logs (`benchmarks/log_corpus.py`) all 76 from SURE on are right, and one in three below it.
# From SURE on a finding may be a root cause. From CERTAIN on the report asks for no more, and a risk precedes slowness.
STATED = 0.97  # A message, a variable or a comparison that nothing else leaves.
SEEN = 0.95  # Recorded where it happened; an earlier failure without a record is not excluded.
CERTAIN = 0.9  # Recorded but for one conclusion: which side is wrong, when it happened, or whose it is.
LIKELY = 0.85  # Another cause leaves the same evidence, but rarely.
PROBABLE = 0.8  # The same, and the rank or the place is not known.
PLAUSIBLE = 0.75  # Another cause leaves the same evidence at times.
POSSIBLE = 0.7  # Another cause often leaves it.
OPEN = 0.6  # Another cause leaves it as often.
SURE = 0.5  # More likely than all other causes together.
SUSPECTED = 0.45  # Another cause leaves it more often.
# Between these levels: kinds of evidence whose share of right answers was measured, or that differ from another kind.
WATCHDOGS = {
    "named": 0.78,  # Watchdogs of one named group differ; less than dumps, which show the preceding calls.
    "unnamed": 0.72,  # A tie, or a group that they do not name. Right in 5 of 5 logs whose cause became known.
    "apart": 0.65,  # Ranks at other positions, which may be late or have made other calls before. 3 of 3 logs.
}
ASSUMED = 0.65  # At most, if ranks without a dump are assumed not to be in a group of unknown membership.
AHEAD = 0.55, 0.65  # Few ranks are one call ahead of others, which may be late; or wait in a call that gloo omits.
SIZES_PRINTED = 0.35  # Two sizes, maybe of different calls: in 1 of 5 jobs that gloo ended so they were of one call.
LEVEL = {"seen": SEEN, "certain": CERTAIN, "likely": LIKELY, "plausible": PLAUSIBLE, "possible": POSSIBLE, "open": OPEN}
CITED = 8  # Maximum number of lines, events, ranks or nodes that a finding cites as evidence.


class Where(Struct, frozen=True):
    """A source line: the innermost frame outside torch and the standard library."""

    rank: int | None
    file: str
    line: int
    function: str = ""
    does: str | Phrase = ""
    """The rank's activity there: `all_reduce [1024] float32`, `waits in queue.get`."""


class EvidenceItem(Struct, frozen=True):
    """One observation, and its location in the evidence."""

    kind: str
    """`flight`, `trace`, `log`, `stacks`, `error`, `heartbeat`, `config`, `snapshot`, `timeline`, `environment`."""
    file: str
    """Path relative to the diagnosed path."""
    detail: str | Phrase
    """The quoted text, or a row of the cause's texts with its figures, which the report formats."""
    line: int | None = None


class Remedy(Struct, frozen=True):
    """A change that fixes the cause: an override for dtk's runs, a code change at a location for others, a variable."""

    kind: Literal["override", "code", "environment"]
    change: str
    """What to type: `strategy.bucket_cap_mb=25`; for code, a sentence that names file:line."""
    why: str
    saves: str = ""
    """Upper bound of the saving: `3.1 GiB of 14.8 GiB`, `41 ms of 180 ms per step`."""


class Group(Struct, frozen=True):
    """A process group: that of a finding, or one that a rank belongs to."""

    name: str
    """torch's name, equal on all members that created their groups in the same order."""
    ranks: tuple[int, ...]
    """Global ranks, ordered by rank in the group; empty if unknown."""
    desc: str = ""


class Cost(Struct, frozen=True):
    """Cost of the cause; for a remedy an upper bound of the saving, not a promise."""

    value: float
    unit: Unit
    share: float = 0.0
    """Share of a step; 0 if the cost is no time of a step, or the step is unknown."""


class Text(Struct, frozen=True):
    """Text of a finding, generated for the report. Custom detectors may also use it as facts."""

    summary: str
    """One or two sentences for the user. If undecided: what the evidence does not show."""
    measured: str = ""
    """Measured value at this edge of the tree: `0 of 3,120 positions differ`, `exposed 41 ms of 180 ms`."""
    missing: str = ""
    """Only if undecided: the override, variable or file that would record what is missing."""
    remedies: tuple[Remedy, ...] = ()
    """Remedies, the best first."""

    @property
    def claim(self) -> str:
        """Return the first sentence of the summary as a clause: a headline. No decision reads it."""
        return self.summary.partition(". ")[0].rstrip(".")

    def text(self, finding: "Finding") -> "Text":
        """Return the text unchanged."""
        return self


class Facts(Protocol):
    """Facts of a finding: a frozen dataclass of figures, calls, sites and names, defined next to its cause."""

    def text(self, finding: "Finding") -> Text:
        """Return the text of the finding, which depends only on these facts and the finding."""


class FormattedFacts(Struct, frozen=True):
    """Figures of a finding, and what formats them: the rows of a table (`causes.declared.Texts`)."""

    words: "Callable[..., Text]"
    figures: Mapping[str, Any]

    def text(self, finding: "Finding") -> Text:
        """Format the figures as text."""
        return self.words(finding, **self.figures)


class Finding(Struct, frozen=True, kw_only=True, dict=True):
    """One decided cause (ids: docs/causes.md)."""

    cause: str = ""
    """Id of the cause; set by its declaration, or by a custom detector itself."""
    status: Status
    facts: Facts
    """Measurements and observations, formatted by `text_of`."""
    injected: str = ""
    """The injected fault, in a confirmed finding of a run with one."""
    confidence: float = 1.0
    """0 to 1: one of the levels above, or 1 if proven by the evidence itself."""
    ranks: tuple[int, ...] = ()
    """Culprits, ascending. In a tie all of them, and the summary mentions the tie."""
    tie: bool = False
    """Whether one side of `ranks` is to blame, and it is open which."""
    victims: tuple[int, ...] = ()
    group: Group | None = None
    position: int | None = None
    """Sequence number within the group."""
    step: int | None = None
    where: tuple[Where, ...] = ()
    """Both sides of a mismatch; the culprit first."""
    cost: Cost | None = None
    evidence: tuple[EvidenceItem, ...] = ()
    basis: Basis = "records"

    @property
    def suspected(self) -> bool:
        """Whether evidence names the cause with too little confidence for a root cause."""
        return self.status == "confirmed" and self.confidence < SURE

    @property
    def verdict(self) -> Status:
        """The status that trees and reports show: what is only suspected stays undecided."""
        return "undecided" if self.suspected else self.status

    @cached_property
    def _text(self) -> Text:
        """Return the text, cached because findings are sorted, evaluated and displayed by it."""
        text = self.facts.text(self)
        if self.injected and not any(remedy.kind == "override" for remedy in text.remedies):
            why = table_beside(__file__)["injected"].format(fault=self.injected)
            text = replace(text, remedies=(Remedy("override", "fault=none", why), *text.remedies))
        return text


confirmed = partial(Finding, status="confirmed")
"""Returns a finding that confirms its cause; `Texts` makes those that do not."""


def text_of(finding: Finding) -> Text:
    """Return the text of the finding. If no override fixes an injected fault, the first remedy removes the fault."""
    return finding._text


class Suspicion(Struct, frozen=True):
    """An unconfirmed cause, and its probability given the evidence."""

    cause: str
    probability: float
    """0 to 1, over all possible causes (`benchmarks/log_corpus.py` prints its calibration)."""
    ranks: tuple[int, ...] = ()
    """Suspected ranks; empty if unknown."""
    speaks_for: tuple[str, ...] = ()
    speaks_against: tuple[str, ...] = ()
    decide: str = ""
    """What to run or collect to confirm it or rule it out; requires no changes to the job."""


class Detection(Struct):
    """Result of one detector."""

    findings: list[Finding]
    measures: dict[str, Any] = field(default_factory=dict)
    """JSON values for `report.measures`, under the detector's own key (`overlap`, `memory`, `hang`)."""


class Detector(Protocol):
    """A built-in detector, or a custom one from the entry point `dtk.detectors`."""

    name: str
    causes: tuple[str, ...]
    """Ids that it decides; it returns at least one finding for each."""

    def detect(self, evidence: Any) -> Detection:
        """Decide every cause. Never raise on unexpected evidence: causes without readable evidence are `undecided`."""
