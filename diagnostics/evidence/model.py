"""What the readers found, as one value that the detectors share. Holds no verdict and reads no file."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from diagnostics.contract.artifacts import Heartbeat, Status
from diagnostics.evidence.limits import Limits


class Kind(Protocol):
    """A class of handles: it names the kind of its files."""

    kind: ClassVar[str]


H = TypeVar("H", bound=Kind)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a Python stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of a stack dump, innermost frame first."""

    name: str
    frames: tuple[Frame, ...]
    main: bool = False


@dataclass(frozen=True, slots=True)
class Stacks:
    """Stacks of all threads of one rank at one moment (faulthandler, py-spy)."""

    rank: int | None
    file: str
    """Relative to the evidence's root, as every `file` here."""
    threads: tuple[Thread, ...]
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class RankError:
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


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """An attempt of the job that was followed by another."""

    attempt: int
    error: RankError | None
    """Of the rank that failed first; None where it left none."""


@dataclass(frozen=True, slots=True)
class LogFact:
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


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that could not be used, or a contradiction between files; a line under coverage."""

    kind: str
    """Kind of evidence: `flight`, `trace`, `log`, ..., or `file`."""
    file: str
    what: str
    harmless: bool = False
    """Nothing is lost by it: what it is about is known from elsewhere, or is no evidence."""
    unread: bool = False
    """Nothing of the file could be used."""
    reason: Literal["", "damaged", "newer", "empty"] = ""
    """Of a run's own record: it is not what dtk wrote, or only a newer dtk can read it. `empty` of any file."""


@dataclass(slots=True)
class RunEvidence:
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

    @property
    def planted(self) -> str:
        """Name of the fault that the run planted on purpose; empty without one."""
        name = self.get("fault.name", "none")
        return name if isinstance(name, str) and name != "none" else ""

    def get(self, key: str, default: Any = None) -> Any:
        """One value of the configuration by its dotted key (`strategy.bucket_cap_mb`)."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    def number(self, key: str, default: float) -> float:
        """One number of the configuration; the default where there is none, or something else in its place."""
        value = self.get(key)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
        return value if usable else default


@dataclass(slots=True)
class Evidence:
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


_RANK_WORD = re.compile(r"(?:^|[^a-z])rank[_\-. ]?(\d{1,7})(?!\d|[a-z](?![a-z]))", re.IGNORECASE)
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
    match = _RANK_WORD.search(stem) or _LAST_NUMBER.search(stem)
    if match is None:
        match = _RANK_WORD.search(path.parent.name)
    return int(match.group(1)) if match else None
