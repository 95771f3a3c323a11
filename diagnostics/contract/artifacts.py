"""The run folder: the path and content of each record (docs/architecture.md, "The run folder").
The contract between writers (`dtk.record`) and readers (`diagnostics`); imports neither.
"""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec

from msgspec import convert

from diagnostics.contract.files import read_json, replacing
from diagnostics.contract.secrets import masked

SCHEMA_VERSION = 1  # Increased when a record changes so that an old reader would misread it.
HEARTBEAT_BYTES = 512  # Size of a heartbeat file: one JSON object padded with spaces, rewritten in place.
ENDED_BY_WATCH = 75
"""Exit code of a rank that the live watch terminated, which is a consequence of the failure, never its cause."""
FINISHED = "finished"  # Kind of the record for a command under `dtk watch` that exited with code 0.
PAUSED = "paused"
"""Kind of the record of the times at which a rank's process was suspended: `rank`, `pauses` = [[began_s, lasted_s]]."""
CHECKPOINT_INFO = "checkpoint.json"
"""Metadata next to the files of a checkpoint. Its presence means that the checkpoint is complete."""
_CHECKPOINT = re.compile(r"step_[0-9]{8,18}")
State = Literal["queued", "running", "finished", "failed", "hung", "oom", "preempted"]
_P = ParamSpec("_P")


class _At:
    def __init__(self, place: str, holds: str = "") -> None:
        self.place, self.__doc__ = place, holds

    def __get__(self, run: "RunPaths", owner: type) -> Path:
        return run.root / self.place


class _Of(Generic[_P]):
    """Paths in the run folder with numbers in their names."""

    def __init__(self, place: str, holds: str = "") -> None:
        self.place, self.__doc__ = place, holds

    def __get__(self, run: "RunPaths", owner: type) -> Callable[_P, Path]:
        def path(*numbers: _P.args, **names: _P.kwargs) -> Path:
            return run.root / self.place.format(*numbers)

        return path


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Paths inside one run folder. Builds names only; does not access files."""

    root: Path

    manifest = _At("manifest.json", "What ran where: argv, versions, git, hardware, topology.")
    config = _At("config.yaml", "The resolved configuration.")
    overrides = _At("overrides.yaml", "What the user typed.")
    origins = _At("origins.json", "Which file or override set each key (`diagnostics.contract.origins`).")
    plan = _At("plan.json", "What was predicted of memory and traffic at launch, of the job without its fault.")
    parity = _At("parity.json", "What tells whether two runs may be compared: the initial weights' hash, formats.")
    status = _At("status.json", "How the run stands or ended (`Status`).")
    metrics = _At("metrics.jsonl", "One JSON object per logged step.")
    summary = _At("summary.json", "Final figures, each with its definition.")
    finished = _At("finished.json", "That a command under `dtk watch` ended well: kind `FINISHED`, command, time.")
    checkpoints = _At("checkpoints", "Folder of `step_00001000/` checkpoints.")
    checkpoint = _Of[[int]]("checkpoints/step_{:08d}", "Of a step: one complete checkpoint.")
    export = _At("export", "Final weights in Hugging Face's layout.")
    verify = _At("verify", "Folder of the short runs that tried a remedy: run folders of their own.")
    events = _Of[[int]]("events/rank_{:05d}.jsonl", "Of a rank: spans and lifecycle events, JSON lines.")
    heartbeat = _Of[[int]]("heartbeat/rank_{:05d}.json", "Step, open region and time of a rank, rewritten in place.")
    start = _Of[[int, int]]("start/attempt_{}/rank_{:05d}.json")
    """Progress of a watched rank towards its process group, by attempt and rank; written by `dtk.record.inject`."""
    question = _At("start/asked", "Created to ask the ranks of a watched command to report where they are.")
    answer = _Of[[int]]("start/answer_{:05d}.json", "How long it has been idle (`idle_s`), whether in a call.")
    flight = _Of[[int]]("flight/rank_{:05d}.pickle", "Flight-recorder dump with stacks, written when it fails.")
    black_box = _Of[[int]]("flight/rank_{:05d}.blackbox.json", "Last collectives, rewritten every few seconds.")
    ring = _Of[[int]]("flight/rank_{:05d}.ring", "Its last few thousand calls to torch.distributed (binary).")
    watchdog_prefix = _At("flight/watchdog_rank_", "Dumps of torch's own watchdog: this prefix + rank, a pickle each.")
    stacks = _Of[[int]]("stacks/rank_{:05d}.txt", "Of a rank: Python stacks of all threads.")
    trace = _Of[[int]]("traces/rank_{:05d}.json.gz", "Of a rank: profiler window (Chrome trace).")
    memory = _Of[[int]]("memory/rank_{:05d}.jsonl", "Of a rank: memory timeline, JSON lines.")
    memory_snapshot = _Of[[int]]("memory/rank_{:05d}.snapshot.pickle", "CUDA allocator snapshot, on out-of-memory.")
    telemetry = _Of[[int]]("telemetry/node_{:05d}.jsonl", "Of a node: device and host samples, JSON lines.")
    logs = _Of[[int, int]]("logs/attempt_{}/rank_{:05d}", "Folder with stdout.log, stderr.log, error.json.")
    error = _Of[[int, int]]("logs/attempt_{}/rank_{:05d}/error.json", "The exception that ended it.")
    pauses = _Of[[int, int]]("logs/attempt_{}/rank_{:05d}/pauses.json", "When none of its threads ran (`PAUSED`).")
    verdict = _Of[[int]]("logs/attempt_{}/watch.json", "Of an attempt: why the live watch ended it (`Verdict`).")


@dataclass(frozen=True, slots=True)
class Failure:
    """The first rank that failed, and how."""

    rank: int
    """-1 if no single rank is to blame: the ranks disagree, or all wait."""
    reason: str
    """One line: `ValueError: bad batch (train.py:12)`, `killed by SIGKILL`."""
    step: int | None = None
    """Step in progress, counted from 1."""
    region: str | None = None
    """Region that was open, such as `backward`."""
    log: str | None = None
    """Log file or folder, relative to the run folder."""
    exit_code: int | None = None
    """Exit code as reported by the operating system; negative if killed by that signal."""
    victims: list[int] = field(default_factory=list)
    """Ranks that failed as a consequence."""
    kind: str = ""
    """A `diagnostics.evidence.endings.Kind`; empty if no single rank is to blame."""
    type: str = ""
    """Class of its exception; empty if there is none."""
    message: str = ""
    signal: str | None = None
    """Signal that killed it, such as `SIGKILL`."""


@dataclass(frozen=True, slots=True)
class Status:
    """Content of status.json."""

    state: State
    attempt: int = 0
    exit_code: int | None = None
    """Exit code of the command; null while running."""
    reason: str = ""
    step: int | None = None
    """Last finished step."""
    started: str = ""
    """Start time, UTC, ISO 8601."""
    updated: str = ""
    failure: Failure | None = None
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Verdict:
    """Content of watch.json: why the ranks were terminated."""

    kind: Literal["desync", "stall"]
    """`desync`: ranks called different collectives at one position of a group. `stall`: all progress stopped."""
    reason: str
    """One or two sentences."""
    culprits: list[int]
    """Ranks that the rest waited for, or that differ from the majority; empty if they cannot be determined."""
    victims: list[int]
    group: str = ""
    position: int | None = None
    """Sequence number of the first difference in the group."""
    step: int | None = None
    region: str | None = None
    attempt: int = 0
    time_s: float = 0.0
    """Time of detection, seconds since 1970."""
    schema_version: int = SCHEMA_VERSION

    def failure(self) -> Failure:
        """Return the verdict as the failure in status.json; its rank is -1 if no single rank is to blame."""
        rank = self.culprits[0] if len(self.culprits) == 1 else -1
        return Failure(rank=rank, reason=self.reason, step=self.step, region=self.region, victims=self.victims)


def read_verdict(path: Path) -> Verdict | None:
    """Read watch.json; return None if it is missing or invalid."""
    try:
        return convert(read_json(path), Verdict)
    except (OSError, ValueError):
        return None


def complete_checkpoints(paths: RunPaths) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first; folders with other names are ignored."""
    folders = (folder for folder in paths.checkpoints.glob("step_*") if _CHECKPOINT.fullmatch(folder.name))
    return sorted((folder for folder in folders if (folder / CHECKPOINT_INFO).is_file()), key=lambda f: int(f.name[5:]))


def write_json(path: Path, record: Any) -> None:
    """Write a dataclass or JSON value atomically, with secrets masked; OSError if the folder is full or read-only."""
    value = asdict(record) if hasattr(record, "__dataclass_fields__") else record
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside, aside.open("w", encoding="utf-8") as file:
        json.dump(masked(value), file, indent=2, default=str)
        file.write("\n")


class NewerSchemaError(ValueError):
    """A record that requires a newer dtk. The message is one line."""


def read_status(path: Path) -> Status:
    """Read status.json.

    OSError if the file cannot be read, NewerSchemaError if its schema is newer, ValueError if it is not a status
    record.
    """
    return as_status(read_json(path), path)


def as_status(value: Any, path: Path | str) -> Status:
    """Convert a JSON value to a status. See `read_status`."""
    if not isinstance(value, dict) or "state" not in value:
        raise ValueError(f"{path} is not a status record")
    if isinstance(version := value.get("schema_version", 0), int) and version > SCHEMA_VERSION:
        raise NewerSchemaError(f"{path} was written by a newer dtk (schema {version})")
    return convert(value, Status)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last known position of one rank."""

    step: int | None
    """The step in progress, counted from 1; null before the first step."""
    region: str | None
    """Innermost open region; null between regions."""
    time_s: float
    """Wall clock, seconds since 1970."""
    pid: int
    host: str
    attempt: int = 0


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Read a heartbeat file, even during a rewrite; return None if it is missing or invalid."""
    for _ in range(5):
        try:
            value = read_json(path)
            if value["beat"] == value["beat_end"]:
                return convert(value, Heartbeat)
        except OSError:
            return None
        except (ValueError, KeyError, TypeError):
            continue  # Read in the middle of a rewrite.
    return None
