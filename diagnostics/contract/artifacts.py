"""The run folder: where each record lies and what it holds. The contract of writers and readers.

`dtk.record` imports this module to write, everything in `diagnostics` to read; it imports nothing
of either, only the standard library. Layout and meaning: docs/architecture.md, "The run folder".
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from diagnostics.contract.files import read_json, replacing
from diagnostics.contract.secrets import masked

SCHEMA_VERSION = 1
"""Raised when a record changes so that an old reader would misread it."""

HEARTBEAT_BYTES = 512
"""Size of a heartbeat file: one JSON object padded with spaces, rewritten in place."""

ENDED_BY_WATCH = 75
"""Exit code of a rank that the live watch ended: the consequence of what the watch saw, never the cause."""

FINISHED = "finished"
"""Kind of the record of a command under `dtk watch` that ended with exit code 0."""

CHECKPOINT_INFO = "checkpoint.json"
"""Beside the files of a checkpoint: what it is of. Its presence says that the checkpoint is complete."""

State = Literal["queued", "running", "finished", "failed", "hung", "oom", "preempted"]


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Paths inside one run folder. Builds names only; touches no file."""

    root: Path

    @property
    def manifest(self) -> Path:
        """What ran where: argv, versions, git, hardware, topology."""
        return self.root / "manifest.json"

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.root / "config.yaml"

    @property
    def overrides(self) -> Path:
        """What the user typed."""
        return self.root / "overrides.yaml"

    @property
    def origins(self) -> Path:
        """Which file or override set each key (`diagnostics.contract.origins`)."""
        return self.root / "origins.json"

    @property
    def plan(self) -> Path:
        """What was predicted of memory and traffic at launch, of the job without its fault (`dtk plan`)."""
        return self.root / "plan.json"

    @property
    def parity(self) -> Path:
        """What tells whether two runs may be compared: hash of the initial weights, number formats."""
        return self.root / "parity.json"

    @property
    def status(self) -> Path:
        """How the run stands or ended (`Status`)."""
        return self.root / "status.json"

    @property
    def metrics(self) -> Path:
        """One JSON object per logged step."""
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """Final figures, each with its definition."""
        return self.root / "summary.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of `step_00001000/` checkpoints."""
        return self.root / "checkpoints"

    @property
    def export(self) -> Path:
        """Final weights in Hugging Face's layout."""
        return self.root / "export"

    @property
    def verify(self) -> Path:
        """Folder of the short runs that tried a remedy: run folders of their own."""
        return self.root / "verify"

    def events(self, rank: int) -> Path:
        """Spans and lifecycle events of one rank, JSON lines."""
        return self.root / "events" / f"rank_{rank:05d}.jsonl"

    def heartbeat(self, rank: int) -> Path:
        """Where one rank is: step, open region, time; rewritten in place."""
        return self.root / "heartbeat" / f"rank_{rank:05d}.json"

    def start(self, attempt: int, rank: int) -> Path:
        """How far one rank of a watched command is on its way to its process group; `dtk.record.inject` writes it."""
        return self.root / "start" / f"attempt_{attempt}" / f"rank_{rank:05d}.json"

    @property
    def asked(self) -> Path:
        """Made when the ranks of a watched command are to say at once where they are."""
        return self.root / "start" / "asked"

    def answer(self, rank: int) -> Path:
        """Return the file where a rank states how long it has been idle (`idle_s`) and whether it waits in a call."""
        return self.root / "start" / f"answer_{rank:05d}.json"

    def flight(self, rank: int) -> Path:
        """Flight-recorder dump with stacks (pickle), written when a rank fails."""
        return self.root / "flight" / f"rank_{rank:05d}.pickle"

    def black_box(self, rank: int) -> Path:
        """Last collectives of one rank (JSON), rewritten every few seconds."""
        return self.root / "flight" / f"rank_{rank:05d}.blackbox.json"

    def ring(self, rank: int) -> Path:
        """Every call of one rank to torch.distributed, the last few thousand (binary, memory-mapped)."""
        return self.root / "flight" / f"rank_{rank:05d}.ring"

    @property
    def watchdog_prefix(self) -> Path:
        """Dumps that torch's own watchdog writes when NCCL times out: this prefix + rank, a pickle each."""
        return self.root / "flight" / "watchdog_rank_"

    def stacks(self, rank: int) -> Path:
        """Python stacks of all threads of one rank."""
        return self.root / "stacks" / f"rank_{rank:05d}.txt"

    def trace(self, rank: int) -> Path:
        """Profiler window of one rank (Chrome trace)."""
        return self.root / "traces" / f"rank_{rank:05d}.json.gz"

    def memory(self, rank: int) -> Path:
        """Memory timeline of one rank, JSON lines."""
        return self.root / "memory" / f"rank_{rank:05d}.jsonl"

    def memory_snapshot(self, rank: int) -> Path:
        """CUDA allocator snapshot of one rank (pickle), written on out-of-memory."""
        return self.root / "memory" / f"rank_{rank:05d}.snapshot.pickle"

    def telemetry(self, node: int) -> Path:
        """Device and host samples of one node, JSON lines."""
        return self.root / "telemetry" / f"node_{node:05d}.jsonl"

    def logs(self, attempt: int, rank: int) -> Path:
        """Folder with stdout.log, stderr.log and error.json of one rank in one attempt."""
        return self.root / "logs" / f"attempt_{attempt}" / f"rank_{rank:05d}"

    def error(self, attempt: int, rank: int) -> Path:
        """Return the file with the exception that ended one rank."""
        return self.logs(attempt, rank) / "error.json"

    def verdict(self, attempt: int) -> Path:
        """Why the live watch ended an attempt (`Verdict`)."""
        return self.root / "logs" / f"attempt_{attempt}" / "watch.json"

    @property
    def finished(self) -> Path:
        """That a command under `dtk watch` ended well: kind `FINISHED`, command, time."""
        return self.root / "finished.json"

    def checkpoint(self, step: int) -> Path:
        """One complete checkpoint."""
        return self.checkpoints / f"step_{step:08d}"


@dataclass(frozen=True, slots=True)
class Failure:
    """The first rank that failed, and what happened to it."""

    rank: int
    """-1 = no single rank is to blame: they disagree, or all wait."""
    reason: str
    """One line: `ValueError: bad batch (train.py:12)`, `killed by SIGKILL`."""
    step: int | None = None
    """Step it was in, counted from 1."""
    region: str | None = None
    """Region that was open, for example `backward`."""
    log: str | None = None
    """Log file or folder, relative to the run folder."""
    exit_code: int | None = None
    """As the operating system reports it; negative = killed by that signal."""
    victims: list[int] = field(default_factory=list)
    """Ranks that failed because this one did."""


@dataclass(frozen=True, slots=True)
class Status:
    """Content of status.json."""

    state: State
    attempt: int = 0
    exit_code: int | None = None
    """Of the command; null while running."""
    reason: str = ""
    step: int | None = None
    """Last finished step."""
    started: str = ""
    """UTC, ISO 8601."""
    updated: str = ""
    failure: Failure | None = None
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Verdict:
    """Content of watch.json: why the ranks were ended while they ran."""

    kind: Literal["desync", "stall"]
    """`desync`: ranks called different collectives at one position of a group. `stall`: nothing moved any more."""
    reason: str
    """One or two sentences."""
    blamed: list[int]
    """Ranks that the rest waited for, or that differ from the majority; empty when none can be told from the rest."""
    victims: list[int]
    group: str = ""
    position: int | None = None
    """Sequence number in the group, of the first difference."""
    step: int | None = None
    region: str | None = None
    attempt: int = 0
    time_s: float = 0.0
    """When it was found, seconds since 1970."""
    schema_version: int = SCHEMA_VERSION

    def failure(self) -> Failure:
        """As the run's status holds it; rank -1 = no single rank is to blame."""
        rank = self.blamed[0] if len(self.blamed) == 1 else -1
        return Failure(rank=rank, reason=self.reason, step=self.step, region=self.region, victims=self.victims)


def read_verdict(path: Path) -> Verdict | None:
    """Read watch.json; None when there is none to be read."""
    try:
        value = read_json(path)
        return Verdict(**{key: value[key] for key in Verdict.__dataclass_fields__ if key in value})
    except (OSError, ValueError, TypeError):
        return None


def complete_checkpoints(paths: RunPaths) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    return sorted(folder for folder in paths.checkpoints.glob("step_*") if (folder / CHECKPOINT_INFO).is_file())


def write_json(path: Path, record: Any) -> None:
    """Write a dataclass or JSON value, its secrets masked; readers see the old or the new file, never half.

    Raises:
        OSError: the folder is full or read-only.
    """
    value = asdict(record) if hasattr(record, "__dataclass_fields__") else record
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside, aside.open("w", encoding="utf-8") as file:
        json.dump(masked(value), file, indent=2, default=str)
        file.write("\n")


class NewerSchemaError(ValueError):
    """A record that only a newer dtk can read. The message is one line."""


def read_status(path: Path) -> Status:
    """Read status.json.

    Raises:
        OSError: the file cannot be read.
        NewerSchemaError: it is of a newer schema.
        ValueError: it is not a status record.
    """
    return as_status(read_json(path), path)


def as_status(value: Any, path: Path | str) -> Status:
    """Return the status that a JSON value holds. See `read_status`."""
    if not isinstance(value, dict) or "state" not in value:
        raise ValueError(f"{path} is not a status record")
    if value.get("schema_version", 0) > SCHEMA_VERSION:
        raise NewerSchemaError(f"{path} was written by a newer dtk (schema {value['schema_version']})")
    failure = value.pop("failure", None)
    known = {key: value[key] for key in Status.__dataclass_fields__ if key in value}
    return Status(**known, failure=Failure(**failure) if failure else None)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Where one rank was at its last sign of life."""

    step: int | None
    """The step in progress, counted from 1; null before the first."""
    region: str | None
    """Innermost open region; null between regions."""
    time_s: float
    """Wall clock, seconds since 1970."""
    pid: int
    host: str
    attempt: int = 0


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Read a heartbeat file, also while it is being rewritten; None when there is none to be read."""
    for _ in range(5):
        try:
            value = read_json(path)
            if value["beat"] == value["beat_end"]:
                return Heartbeat(**{key: value[key] for key in Heartbeat.__dataclass_fields__})
        except OSError:
            return None
        except (ValueError, KeyError, TypeError):
            continue  # Caught in the middle of a rewrite.
    return None
