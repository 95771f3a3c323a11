"""`dtk.record.attach`: records a custom training loop as a dtk run.

    with dtk.record.attach(name="resnet") as run:
        for batch in run.steps(loader):
            with run.region("forward"): ...
            run.log(loss=loss)

Call it on every rank, after `init_process_group`. The folder is a run folder: `dtk ls`, `show`, `diagnose`, `compare`.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from diagnostics.contract.artifacts import Failure, RunPaths, Verdict, read_status, write_json
from diagnostics.contract.formatting import command, typed
from diagnostics.contract.origins import Origins
from diagnostics.evidence.endings import is_out_of_memory
from diagnostics.evidence.metrics import WARMUP_STEPS
from dtk.config.schema import RecordConfig, TrainConfig, WatchConfig
from dtk.config.strict import kind_of, section_from_plain
from dtk.errors import Errors
from dtk.parallel.regions import communication, failed_in, observed, region
from dtk.record import run_folder
from dtk.record.guard import guarded
from dtk.record.manifest import surroundings
from dtk.record.memory import peak_memory_bytes
from dtk.record.metrics import DEFINITIONS
from dtk.record.recorder import OwnLoop, Recorder
from dtk.record.run_folder import failure_reason, failure_record
from dtk.record.trackers import check_tracker
from dtk.record.watch_environment import FOLDER
from dtk.record.watched_rank import watch_store

T = TypeVar("T")
_errors = Errors(__file__)
_times = 0  # Number of attachments of this process: each has its own keys in the store.


class Recording:
    """One rank of an attached loop. Recording never raises, and only `log` synchronizes with the device."""

    def __init__(self, recorder: Recorder, paths: RunPaths) -> None:
        self.folder, self.step = paths.root, 0
        self._recorder, self._paths = recorder, paths
        self._last: dict[str, Any] = {}
        self._windows: list[float] = []
        self._logged: tuple[int, float, Any] = (0, time.perf_counter(), None)
        """Step, time and tokens of the last record."""
        self._closed = False
        self._at_exit = Finalize(None, self.close, exitpriority=10)
        self._hook, sys.excepthook = sys.excepthook, self._raised

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(error)

    def begin_step(self, step: int | None = None) -> None:
        """Begin a step; `step` counts from 1, None = the next one."""
        self.step = self.step + 1 if step is None else step
        self._recorder.begin_step(self.step)

    def steps(self, batches: Iterable[T], first: int = 1) -> Iterator[T]:
        """Yield the batches; each is a step, counted from `first`, and the time to fetch it is in the region `data`."""
        source, self.step = iter(batches), first - 1
        while True:
            self.begin_step()
            with region("data"):
                try:
                    batch = next(source)
                except StopIteration:
                    self.step -= 1
                    return
            yield batch

    region = staticmethod(region)
    """`with run.region("forward"):`, see `dtk.parallel.regions.region`."""
    communication = staticmethod(communication)
    """`with run.communication("all_reduce", size_bytes, "dp"):`."""

    def log(self, **figures: Any) -> None:
        """Append a record to metrics.jsonl and the tracker, on rank 0; other ranks may call it too.

        The figures are numbers or one-element tensors, which are synchronized. `tokens`, counted over all ranks since
        the start, yields `tokens_per_s`. Step time and peak memory are added.
        """
        if self._recorder.rank:
            return
        with guarded("metrics"):
            values = {name: each.item() if isinstance(each, torch.Tensor) else each for name, each in figures.items()}
            step, at_s, tokens = self._logged
            now_s = time.perf_counter()
            self._logged = (self.step, now_s, values.get("tokens", tokens))
            if self.step > step:
                values.setdefault("step_time_s", (now_s - at_s) / (self.step - step))
                self._windows.append(values["step_time_s"])
                if "tokens" in values:
                    values.setdefault("tokens_per_s", (values["tokens"] - (tokens or 0)) / (now_s - at_s))
            values.setdefault("peak_memory_bytes", peak_memory_bytes(self._recorder.device))
            self._last |= values
            self._recorder.metrics({"attempt": self._recorder.attempt, "step": self.step, **values})

    def close(self, error: BaseException | None = None) -> None:
        """End the recording; called by the end of the `with` block, by an exception, and at the exit of the process.

        `error` ended the loop; None if it finished. Ctrl-C and `sys.exit(1)` are not rank failures.
        """
        if self._closed:
            return
        self._closed = True
        self._at_exit.cancel()
        if sys.excepthook == self._raised:
            sys.excepthook = self._hook
        with guarded("status"):
            if isinstance(error, Exception):
                self._failed(error)
            elif error is not None and (code := getattr(error, "code", 130)):  # Ctrl-C, or `sys.exit(code)`.
                code = code if isinstance(code, int) else 1
                reason = f"ended by {type(error).__name__}"
                run_folder.close(self._paths, "preempted", code, reason=reason, step=self.step)
            elif self._recorder.rank == 0:
                figures = {**self._last, "step": self.step, "world_size": self._recorder.world_size}
                if measured := self._windows[WARMUP_STEPS:] or self._windows:
                    figures |= {"step_time_s": statistics.median(measured), "steps_measured": len(measured)}
                definitions = {name: DEFINITIONS[name] for name in figures if name in DEFINITIONS}
                self._recorder.summary({"schema_version": 1, "figures": figures, "definitions": definitions})
                run_folder.close(self._paths, "finished", 0, step=self.step)
        self._recorder.close()

    def _failed(self, error: Exception) -> None:
        """Write error.json on this rank, and the run's status if no other rank has failed before."""
        rank, attempt = self._recorder.rank, self._recorder.attempt
        record = failure_record(error, rank, attempt)
        write_json(self._paths.error(attempt, rank), record)
        if read_status(self._paths.status).state == "running":
            reason, log = failure_reason(record), f"logs/attempt_{attempt}/rank_{rank:05d}"
            failure = Failure(rank, reason, self.step, failed_in(), log=log)
            run_folder.close(self._paths, "oom" if is_out_of_memory(error) else "failed", 1, failure=failure)
        self._recorder.failed(error)

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._hook(kind, error, trace)
        self.close(error)


def attach(
    folder: str | Path = "runs",
    *,
    name: str = "own",
    config: Mapping[str, Any] | None = None,
    level: Literal["light", "full"] = "light",
    stall_timeout_s: float = 120.0,
    tracker: Mapping[str, Any] | None = None,
) -> Recording:
    """Start recording this process as a rank of a run. Call it on every rank, after `init_process_group`.

    Args:
        folder: parent of the run folder; several nodes need a shared one.
        name: name of the job, a part of the run's name.
        config: stored as config.yaml, used by `dtk compare` and the tracker; non-JSON values become strings.
        level: see `record=` of `dtk run`; full adds spans, a profiler window and the memory timeline.
        stall_timeout_s: seconds in which no rank moves or works before the live watch ends the job.
        tracker: keys of dtk's section `tracker`, such as `{"name": "wandb", "project": "mine"}`.

    DtkError if the process is already recorded, an argument is invalid, the folder cannot be written, or WORLD_SIZE
    announces other ranks and there is no process group yet.
    """
    global _times
    joined, ranks = dist.is_available() and dist.is_initialized(), os.environ.get("WORLD_SIZE", "1")
    rules = {"watched": FOLDER in os.environ, "recorded": observed(), "early": not joined and int(ranks) > 1}
    _errors.refuse(rules, ranks=ranks)
    mirror = dict(tracker or {"name": "none"})
    settings = OwnLoop(
        section_from_plain(RecordConfig, {"level": level}, "record"),
        section_from_plain(WatchConfig, {"stall_timeout_s": float(stall_timeout_s)}, "watch"),
        section_from_plain(kind_of("tracker", mirror), mirror, "tracker"),
        json.loads(json.dumps(dict(config or {}), default=str)),
        TrainConfig(steps=sys.maxsize),
    )
    check_tracker(settings.tracker)
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    _times += 1
    prefix = f"own/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_times}"
    paths = _run_folder(Path(folder).absolute(), name, settings, rank, world_size, prefix)
    on_gpu = torch.cuda.is_available() and (not joined or "nccl" in str(dist.get_backend_config()))
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    local_rank, node_rank = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("GROUP_RANK", "0"))
    recorder = Recorder(settings, paths, rank, local_rank, node_rank, world_size, 0, device)
    recorder.start()
    if world_size > 1:

        def ended(verdict: Verdict) -> None:
            run_folder.close(paths, "hung", 1, reason=verdict.reason, step=verdict.step, failure=verdict.failure())
            then = command("diagnose", typed(paths.root))
            print(f"dtk: the live watch ends this job: {verdict.reason}\nnext: {then}", file=sys.stderr, flush=True)

        with guarded("watch"):
            store, hosted = watch_store(c10d._get_default_store(), prefix, rank)
            recorder.watch(store, ended, hosted=hosted)
    return Recording(recorder, paths)


def _run_folder(folder: Path, name: str, settings: OwnLoop, rank: int, world_size: int, prefix: str) -> RunPaths:
    """Create and describe the run folder on rank 0, and broadcast its path."""
    store: Any = c10d._get_default_store() if world_size > 1 else None
    key = f"dtk/{prefix}/folder"
    if rank:
        path = store.get(key).decode()
        _errors.refuse({"no_folder": not path})
        return RunPaths(Path(path))
    root = ""
    try:
        job = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
        paths = run_folder.create(folder / run_folder.stamped(job, world_size))
        about = surroundings(paths.root.name, world_size, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)), folder)
        run_folder.describe(paths, {**about, "launcher": "own"}, settings.own, [], Origins())
        run_folder.begin(paths, 0)
        root = str(paths.root)
    finally:
        if store is not None:
            store.set(key, root)
    print(f"dtk: recording in {paths.root}", flush=True)
    return paths
