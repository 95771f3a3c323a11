"""The Evidence: the readers' results in one object, and types of what they hold. No verdicts; reads no files."""

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Meta, Struct, field

from diagnostics.contract.artifacts import Heartbeat, Status
from diagnostics.contract.files import patterns_beside, read_table
from diagnostics.contract.findings import EvidenceItem
from diagnostics.contract.formatting import Phrase, filled
from diagnostics.contract.origins import at_key
from diagnostics.contract.strategy_traits import UNKNOWN, StrategyTraits, strategy_traits
from diagnostics.evidence.limits import Limits

_DECIMAL = re.compile(r"-?\d{1,19}", re.ASCII)
MOST_BYTES = 1 << 50
MOST_RANKS = 2**18  # A larger number in a file is no number of ranks: the largest training jobs have some 100,000.
MAX_MEMBERS = 1 << 22
"""Maximum number of ranks in all groups of one rank, counted once per group; a file with more is not a job's."""
Rank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
Size = Annotated[int, Meta(ge=0, lt=MOST_BYTES)]
Time = Annotated[float, Meta(ge=0, lt=1e11)]  # Seconds since 1970.
Number = Annotated[float, Meta(ge=-1e21, le=1e21)]  # Finite, and no larger than anything that is measured.
QUOTED, CLAUSE = 200, 120  # Chosen: characters of a message in a line of its own, and of one within a sentence.


class Kind(Protocol):
    """A class of handles, which names the kind of its files."""

    kind: ClassVar[str]


H = TypeVar("H", bound=Kind)


class Frame(Struct, frozen=True, omit_defaults=True):
    """One frame of a Python stack."""

    file: str
    line: int
    function: str
    raises: bool = False
    """Whether the line is a `raise` statement, so this code itself found what is wrong; only tracebacks show it."""


class Thread(Struct, frozen=True):
    """One thread of a stack dump, innermost frame first."""

    name: str
    frames: tuple[Frame, ...]
    main: bool = False


class Stacks(Struct, frozen=True):
    """Stacks of all threads of one rank at one time (faulthandler, py-spy)."""

    rank: int | None
    file: str
    """Path relative to the evidence's root, as every `file` here."""
    threads: tuple[Thread, ...]
    time_s: float | None = None
    pid: int | None = None
    """Process id, which py-spy tells."""


class RankError(Struct, frozen=True):
    """How one rank ended, from an error file, a traceback or the launcher's summary."""

    rank: int | None
    file: str
    line: int
    """Line in `file`; 0 for the whole file."""
    type: str
    """Class of the exception; empty if only a signal or an exit code is known."""
    message: str
    frames: tuple[Frame, ...] = ()
    """Innermost first."""
    signal: str | None = None
    """`SIGKILL`, `SIGABRT`, ..."""
    exit_code: int | None = None
    """Exit code as reported by the operating system; negative if killed by that signal."""
    time_s: float | None = None
    after_s: float | None = None
    before_s: float | None = None
    """Times of its line, or of the dated lines above and below it, by the clock of the log, whose zone is unknown."""
    step: int | None = None
    region: str | None = None
    vanished: bool = False
    """Whether its process disappeared without a known exit status."""
    caught: bool = False
    """Whether a handler printed the traceback, so that the process may have gone on."""
    followed: bool = False
    """Whether a handler printed the traceback, and other lines follow in a log that shows no end."""
    below: int = 0
    """Steps below its line in a log that shows no end: they may be its own, written late, or those of its peers."""
    local_rank: int | None = None
    """Its number on a node, if the rank is unknown and a launcher's line has that number."""


class EarlierAttempt(Struct, frozen=True):
    """An attempt of the job that was followed by another one."""

    attempt: int
    error: RankError | None
    """Error of the rank that failed first; None if there is none."""
    silent: tuple[int, ...] = ()
    """Ranks without an error file, such as killed ones."""


class LogFact(Struct, frozen=True):
    """One decoded line of a log that matches a pattern."""

    kind: str
    """`watchdog_timeout`, `desync_report`, `nccl_warn`, `nccl_env`, `cuda_oom`, `cpu_oom`, `gloo_mismatch`,
    `gloo_closed`, `ddp_unused`, `rendezvous_timeout`, ... (the table is `evidence/logs/patterns.yaml`)"""
    rank: int | None
    file: str
    line: int = 0
    text: str = ""
    """The line, shortened; empty for what a record holds as `fields`."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Captured values: field names with units, numbers as numbers, sizes in `_bytes`."""
    time_s: float | None = None

    def quoted(self) -> EvidenceItem:
        """Return the line as evidence of a finding."""
        return EvidenceItem("log", self.file, self.text, self.line)


_PROBLEMS = read_table(Path(__file__).with_name("problems.yaml"))


class Problem(Struct, frozen=True):
    """A file that could not be used, or a contradiction between files; printed under coverage."""

    kind: str
    """Kind of evidence: `flight`, `trace`, `log`, ..., or `file`."""
    file: str
    about: str
    """A name in `problems.yaml`; any other text is an exception's message."""
    harmless: bool = False
    """Whether nothing is lost: the content is known from elsewhere, or is not evidence."""
    unread: bool = False
    """Whether none of the file could be used."""
    reason: Literal["", "damaged", "newer", "empty"] = ""
    """Of a run's own record: it is not what dtk wrote, or only a newer dtk can read it. `empty` of any file."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Figures for the sentence of that name (`formatting.filled`); integers in a list are ranks."""

    @property
    def what(self) -> str:
        """Return the problem as one line."""
        line = _PROBLEMS.get(self.about)
        return self.about if line is None else filled(line, self.figures)


class RunEvidence(Struct):
    """The records of a dtk run folder."""

    root: Path
    status: Status | None
    config: dict[str, Any]
    """Resolved configuration; empty if damaged."""
    manifest: dict[str, Any]
    summary: dict[str, Any]
    plan: dict[str, Any]
    heartbeats: dict[int, Heartbeat]
    events: dict[int, list[dict[str, Any]]]
    """Lifecycle events of each rank in the last attempt, without spans."""
    attempt: int = 0
    lost: bool = False
    """Whether status.json is `running`, but the process that wrote it has exited."""

    suspended: tuple[int, ...] = ()
    """Ranks of a running run whose processes on this machine are stopped by a signal or a debugger at this moment."""
    seen: bool = True
    """False if status.json is `running`, and this machine cannot check whether the process that wrote it is alive."""

    @property
    def traits(self) -> StrategyTraits:
        """Return what is recorded of the strategy."""
        return strategy_traits(self.manifest, self.config)

    def silent_s(self, now_s: float) -> float | None:
        """Return the seconds since the latest heartbeat of any rank; None without heartbeats."""
        return max(0.0, now_s - max(beat.time_s for beat in self.heartbeats.values())) if self.heartbeats else None

    @property
    def state(self) -> str:
        """Return a state of status.json, or `lost`; empty if the status cannot be read."""
        return "lost" if self.lost else self.status.state if self.status is not None else ""

    @property
    def injected(self) -> str:
        """Return the name of the injected fault; empty if there is none."""
        name = self.get("fault.name", "none")
        return name if isinstance(name, str) and name != "none" else ""

    @property
    def searches_blocks(self) -> bool:
        """Return whether dtk had to find the blocks of the user's own model, as it shards them one by one."""
        units = self.get("strategy.blocks_per_unit")
        return self.get("model.architecture") == "custom" and isinstance(units, int) and units > 0

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the configuration by its dotted key (`strategy.bucket_cap_mb`)."""
        return at_key(self.config, key, default)

    def number(self, key: str, default: float) -> float:
        """Return a number of the configuration; the default if it is missing or not a number."""
        value = self.get(key)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
        return value if usable else default


class Evidence(Struct):
    """All evidence found below one path."""

    root: Path
    limits: Limits
    run: RunEvidence | None = None
    world_size: int | None = None
    """Number of ranks of the job according to any file; the observed ranks are only a lower bound."""
    launched: frozenset[int] = frozenset()
    """Ranks for which torchrun created a folder of logs; the job may have more."""
    files: dict[str, list[Any]] = field(default_factory=dict)
    """Kind -> the handles of its files: objects with `rank`, `file` and `load()`, on disk or in memory. A history of
    calls that was never a file is one too (`calls.CallFile`, under `flight`, `ring` or `simulation`)."""
    stacks: list[Stacks] = field(default_factory=list)
    errors: list[RankError] = field(default_factory=list)
    earlier: list[EarlierAttempt] = field(default_factory=list)
    """Results of the attempts before the last one; all other fields are about the last one."""
    facts: list[LogFact] = field(default_factory=list)
    environment: dict[int, dict[str, str]] = field(default_factory=dict)
    """Rank (-1 for all, from a manifest) -> relevant variables (NCCL_*, TORCH_*, GLOO_*, CUDA_*, PYTORCH_*)."""
    inside: dict[str, set[int]] = field(default_factory=dict)
    """Kind -> ranks found in the content of its files, as names may not contain them."""
    problems: list[Problem] = field(default_factory=list)
    disk_bytes: int = 0
    """Allocated size of all files; 0 for evidence created in memory."""
    doubt: Phrase | None = None
    """Why the dumps may be from several jobs, so that ranks cannot be compared; None if there is no sign of it."""

    @property
    def is_dtk(self) -> bool:
        """Whether the files are those of a dtk run, whose remedies are configuration overrides."""
        return self.run is not None

    @property
    def is_cut(self) -> bool:
        """Whether lines of known kinds were not kept, so that a missing one says nothing of its rank."""
        return any(problem.about == "not_kept" for problem in self.problems)

    @property
    def traits(self) -> StrategyTraits:
        """Return what is recorded of the strategy of dtk's run; unknown for other jobs."""
        return self.run.traits if self.run is not None else UNKNOWN

    def declared(self, key: str) -> Any:
        """Return a value of the run's configuration, or None without a dtk run."""
        return self.run.get(key) if self.run is not None else None

    def handles(self, kind: type[H]) -> list[H]:
        """Return the handles of one class."""
        return self.files.setdefault(kind.kind, [])

    def relative(self, path: Path) -> str:
        """Return a path as printed in the report."""
        try:
            return str(path.relative_to(self.root)) or path.name
        except ValueError:
            return str(path)


def shortened(text: str, limit: int = QUOTED) -> str:
    """Return at most `limit` characters, with an ellipsis if the text was cut."""
    return text if len(text) <= limit else text[: limit - 3].rstrip() + "..."


_TEXT = patterns_beside(__file__)  # Compiled patterns, documented in the table.


def rank_in_name(path: Path) -> int | None:
    """Return the rank in a file name: the number after the word `rank`, else the last integer, else None.

    `comm_lib_trace_rank_12`, `node-7_tr_3.json` -> 3, `llama_rank_7b_3` -> 3 (7b is a size);
    `worker3_step_12.169412820.pt.trace.json.gz` is for the reader of traces to settle, which knows `distributedInfo`.
    """
    stem = _TEXT["suffixes"].sub("", path.name)
    match = _TEXT["rank"].search(stem) or _TEXT["last_number"].search(stem) or _TEXT["rank"].search(path.parent.name)
    return int(match.group(1)) if match else None


class Owner(NamedTuple):
    """The rank, attempt and node of a file."""

    rank: int | None = None
    local_rank: int | None = None
    """Rank within a node: torchrun's `attempt_0/3/stderr.log`."""
    attempt: int | None = None
    node: str = ""
    """Folder above torchrun's attempts, one for each agent."""


def owner(relative: Path) -> Owner:
    """Return the rank, attempt and node according to a path relative to the evidence's root."""
    folders = relative.parts[:-1]
    attempt = next((int(match[1]) for part in folders if (match := _TEXT["attempt"].fullmatch(part))), None)
    match = _TEXT["rank"].search(relative.name) or (_TEXT["rank"].search(folders[-1]) if folders else None)
    if match:
        return Owner(int(match[1]), attempt=attempt)
    if (
        len(folders) >= 2
        and folders[-1].isdecimal()
        and len(folders[-1]) < 6
        and _TEXT["attempt"].fullmatch(folders[-2])
    ):
        return Owner(None, int(folders[-1]), attempt, "/".join(folders[:-2]))
    match = _TEXT["process"].search(relative.name)
    return Owner(int(match[1]) if match else None, attempt=attempt)


def integer(value: object, low: int = -(1 << 62), end: int = 1 << 62) -> int | None:
    """Return an integer from `low` up to, not including, `end`; it may be written as a text."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value < end else None


def size_of(value: object) -> int | None:
    """Return a number of bytes or of other things in memory."""
    return integer(value, 0, MOST_BYTES)


def seconds(value: object) -> float | None:
    """Return seconds since 1970, which elastic writes as a text."""
    try:
        number = float(value) if isinstance(value, int | float | str) else -1.0
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 1e11 else None
