"""The Evidence: what the readers found, as one value that the detectors share. Holds no verdict and reads no file."""

import re
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Struct, field

from diagnostics.contract.artifacts import Heartbeat, Status
from diagnostics.contract.files import read_table
from diagnostics.contract.formatting import ranks_spoken
from diagnostics.contract.origins import at_key
from diagnostics.evidence.limits import Limits


class Kind(Protocol):
    """A class of handles: it names the kind of its files."""

    kind: ClassVar[str]


H = TypeVar("H", bound=Kind)


class Frame(Struct, frozen=True):
    """One frame of a Python stack."""

    file: str
    line: int
    function: str


class Thread(Struct, frozen=True):
    """One thread of a stack dump, innermost frame first."""

    name: str
    frames: tuple[Frame, ...]
    main: bool = False


class Stacks(Struct, frozen=True):
    """Stacks of all threads of one rank at one moment (faulthandler, py-spy)."""

    rank: int | None
    file: str
    """Relative to the evidence's root, as every `file` here."""
    threads: tuple[Thread, ...]
    time_s: float | None = None


class RankError(Struct, frozen=True):
    """How one rank ended, as an error file, a traceback or the launcher's summary tells it."""

    rank: int | None
    file: str
    line: int
    """Line in `file` where it stands; 0 for a whole file."""
    type: str
    """Class of the exception; `""` when only a signal or an exit code is known."""
    message: str
    frames: tuple[Frame, ...] = ()
    """Innermost first."""
    signal: str | None = None
    """`SIGKILL`, `SIGABRT`, ..."""
    exit_code: int | None = None
    """As the operating system reports it; negative = killed by that signal."""
    time_s: float | None = None
    step: int | None = None
    region: str | None = None
    vanished: bool = False
    """Its process was gone, and nobody saw how."""


class EarlierAttempt(Struct, frozen=True):
    """An attempt of the job that was followed by another."""

    attempt: int
    error: RankError | None
    """Of the rank that failed first; None where it left none."""
    silent: tuple[int, ...] = ()
    """Ranks without an error file, as one that is killed."""


class LogFact(Struct, frozen=True):
    """One line of a log that says something known, decoded."""

    kind: str
    """`watchdog_timeout`, `desync_report`, `nccl_warn`, `nccl_env`, `cuda_oom`, `cpu_oom`, `gloo_mismatch`,
    `gloo_closed`, `ddp_unused`, `rendezvous_timeout`, ... (the table is `evidence/logs/patterns.yaml`)"""
    rank: int | None
    file: str
    line: int
    text: str
    """The line itself, shortened."""
    fields: dict[str, Any] = field(default_factory=dict)
    """What the pattern captured: names in the field's words, numbers as numbers, bytes in `_bytes`."""
    time_s: float | None = None


_PROBLEMS = read_table(Path(__file__).with_name("problems.yaml"))


class Problem(Struct, frozen=True):
    """A file that could not be used, or a contradiction between files; a line under coverage."""

    kind: str
    """Kind of evidence: `flight`, `trace`, `log`, ..., or `file`."""
    file: str
    about: str
    """A name in `problems.yaml`; any other text is what an exception said."""
    harmless: bool = False
    """Nothing is lost by it: what it is about is known from elsewhere, or is no evidence."""
    unread: bool = False
    """Nothing of the file could be used."""
    reason: Literal["", "damaged", "newer", "empty"] = ""
    """Of a run's own record: it is not what dtk wrote, or only a newer dtk can read it. `empty` of any file."""
    figures: dict[str, Any] = field(default_factory=dict)
    """What the sentence of that name is filled with; whole numbers in a list are ranks."""

    @property
    def what(self) -> str:
        """The problem as one line, made when it is shown."""
        if (line := _PROBLEMS.get(self.about)) is None:
            return self.about
        lists = {name: value for name, value in self.figures.items() if isinstance(value, list | tuple)}
        spoken = {n: ranks_spoken(v) if isinstance(v[0], int) else ", ".join(v) for n, v in lists.items()}
        return str(line).format_map(self.figures | spoken)


class RunEvidence(Struct):
    """The records of a dtk run folder."""

    root: Path
    status: Status | None
    config: dict[str, Any]
    """Resolved configuration; empty when it is damaged."""
    manifest: dict[str, Any]
    summary: dict[str, Any]
    plan: dict[str, Any]
    heartbeats: dict[int, Heartbeat]
    events: dict[int, list[dict[str, Any]]]
    """Lifecycle events of each rank (no spans), of the last attempt."""
    attempt: int = 0
    lost: bool = False
    """Whether status.json says `running`, and the process that wrote it is gone."""

    seen: bool = True
    """False where status.json says `running`, and this machine cannot see whether the process that wrote it lives."""

    def silent_s(self, now_s: float) -> float | None:
        """Seconds since any rank was last heard of; None without a heartbeat."""
        return max(0.0, now_s - max(beat.time_s for beat in self.heartbeats.values())) if self.heartbeats else None

    @property
    def state(self) -> str:
        """A state of status.json, or `lost`; empty where no status can be read."""
        return "lost" if self.lost else self.status.state if self.status is not None else ""

    @property
    def injected(self) -> str:
        """Name of the fault that was injected into the run; empty without one."""
        name = self.get("fault.name", "none")
        return name if isinstance(name, str) and name != "none" else ""

    def get(self, key: str, default: Any = None) -> Any:
        """One value of the configuration by its dotted key (`strategy.bucket_cap_mb`)."""
        return at_key(self.config, key, default)

    def number(self, key: str, default: float) -> float:
        """One number of the configuration; the default where there is none, or something else in its place."""
        value = self.get(key)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
        return value if usable else default


class Evidence(Struct):
    """Everything that was recognised below one path."""

    root: Path
    limits: Limits
    run: RunEvidence | None = None
    world_size: int | None = None
    """Ranks of the job as far as any file says; the ranks seen are at most a lower bound."""
    launched: frozenset[int] = frozenset()
    """Ranks for which torchrun made a folder of logs; the job may have more."""
    files: dict[str, list[Any]] = field(default_factory=dict)
    """Kind -> the handles of its files: objects with `rank`, `file` and `load()`, on disk or in memory. A history of
    calls that was never a file is one too (`calls.CallFile`, under `flight`, `ring` or `simulation`)."""
    stacks: list[Stacks] = field(default_factory=list)
    errors: list[RankError] = field(default_factory=list)
    earlier: list[EarlierAttempt] = field(default_factory=list)
    """What the attempts before the last one left; everything else here is of the last one."""
    facts: list[LogFact] = field(default_factory=list)
    environment: dict[int, dict[str, str]] = field(default_factory=dict)
    """Rank (-1 = all, from a manifest) -> variables that matter (NCCL_*, TORCH_*, GLOO_*, CUDA_*, PYTORCH_*)."""
    inside: dict[str, set[int]] = field(default_factory=dict)
    """Kind -> ranks that its files turned out to be of once they were read; names alone may not tell."""
    problems: list[Problem] = field(default_factory=list)
    disk_bytes: int = 0
    """What all files take on disk; 0 of evidence that was made in memory."""
    doubt: str = ""
    """Why the dumps may not be of one job, so that ranks cannot be compared; empty where nothing speaks for it."""

    def handles(self, kind: type[H]) -> list[H]:
        """Return the handles of one class, which its reader made."""
        return self.files.setdefault(kind.kind, [])

    def relative(self, path: Path) -> str:
        """Return a path as the report prints it."""
        try:
            return str(path.relative_to(self.root)) or path.name
        except ValueError:
            return str(path)


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, with an ellipsis where something was cut off."""
    return text if len(text) <= limit else text[: limit - 3].rstrip() + "..."


_RANK = re.compile(r"(?:^|[^a-z])rank[_\-. =]?(\d{1,7})(?!\d|[a-z](?![a-z]))", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})(?=\D*$)")
_SUFFIXES = re.compile(
    r"(\.(json|gz|pickle|pkl|pt|trace|txt|log|sqlite|host|blackbox|snapshot|jsonl))+$", re.IGNORECASE
)


def rank_in_name(path: Path) -> int | None:
    """Return the rank in a file name: the number after the word `rank`, else the last integer, else None.

    `comm_lib_trace_rank_12`, `node-7_tr_3.json` -> 3, `llama_rank_7b_3` -> 3 (7b is a size);
    `worker3_step_12.169412820.pt.trace.json.gz` is for the reader of traces to settle, which knows `distributedInfo`.
    """
    stem = _SUFFIXES.sub("", path.name)
    match = _RANK.search(stem) or _LAST_NUMBER.search(stem) or _RANK.search(path.parent.name)
    return int(match.group(1)) if match else None


_WORKER = re.compile(
    r"(?:^|[^a-z])(?:worker|process|proc|task|trainer|stderr|stdout)[_\-.=]?(\d{1,6})(?!\d)", re.IGNORECASE
)
_ATTEMPT = re.compile(r"attempt_(\d{1,6})")


class Owner(NamedTuple):
    """Whose file it is."""

    rank: int | None = None
    local_rank: int | None = None
    """Rank within a node: torchrun's `attempt_0/3/stderr.log`."""
    attempt: int | None = None
    node: str = ""
    """Folder above torchrun's attempts: one for each agent."""


def owner(relative: Path) -> Owner:
    """Return the rank, attempt and node that a path below the evidence's root states."""
    folders = relative.parts[:-1]
    attempt = next((int(match[1]) for part in folders if (match := _ATTEMPT.fullmatch(part))), None)
    match = _RANK.search(relative.name) or (_RANK.search(folders[-1]) if folders else None)
    if match:
        return Owner(int(match[1]), attempt=attempt)
    if len(folders) >= 2 and folders[-1].isdecimal() and len(folders[-1]) < 6 and _ATTEMPT.fullmatch(folders[-2]):
        return Owner(None, int(folders[-1]), attempt, "/".join(folders[:-2]))
    match = _WORKER.search(relative.name)
    return Owner(int(match[1]) if match else None, attempt=attempt)
