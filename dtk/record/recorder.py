"""The facade of recording: installs what a level requires (conf/record/) and dispatches events to it. It must not stop
or slow down a step: failures are reported once, and files are written on other threads.
"""

import faulthandler
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from diagnostics.contract.artifacts import RunPaths, Verdict, write_json
from diagnostics.contract.secrets import masked_text
from diagnostics.evidence.endings import is_out_of_memory
from dtk.config.schema import Config, RecordConfig, TrainConfig, WatchConfig
from dtk.parallel.regions import Observer, failed_in, observe
from dtk.record import collectives, flight, memory, wrappers
from dtk.record.guard import JsonLines, Writer, bounded, flush_reports, guarded, report, run_all
from dtk.record.heartbeat import HeartbeatFile
from dtk.record.observers import Nvtx, ProfilerMarks, ProfilerWindow, Spans
from dtk.record.telemetry import Telemetry, cuda_uuids
from dtk.record.trackers import CLOSE_S, Tracker, TrackerConfig
from dtk.record.watch import Watch

FAILED_S = 3.0  # Chosen: time limit of a failing rank's dumps; its error.json is written before.
FLUSH_S = 5.0  # Chosen: a few MiB remain to be written, and a disk that takes longer hangs.
TRACE_S = 30.0  # Chosen: a trace of several hundred MB is compressed in this time.
HASTY_S = 1.0  # Chosen: replaces both and the tracker's limit after a failure, as the parent waits for this rank.


@dataclass(frozen=True, slots=True)
class OwnLoop:
    """The configuration that a recorder needs, for a training loop outside dtk (`own_loop`)."""

    record: RecordConfig
    watch: WatchConfig
    tracker: TrackerConfig
    own: dict[str, Any]
    """The configuration that the user passed."""
    train: TrainConfig


@dataclass(eq=False)
class Recorder:
    """Records one rank. Every method is a no-op at level off and never raises."""

    config: Config | OwnLoop
    paths: RunPaths
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    attempt: int
    device: torch.device

    def __post_init__(self) -> None:
        self._on = self.config.record.level != "off"
        self._full = self.config.record.level == "full"
        self._writer = Writer("record")
        self._metrics = JsonLines(self.paths.metrics, self._writer)
        self._event_lines = JsonLines(self.paths.events(self.rank), self._writer)
        self._memory = JsonLines(self.paths.memory(self.rank), self._writer)
        self._spans = Spans(self._event_lines)
        self._heartbeat = HeartbeatFile(self.paths.heartbeat(self.rank), self.attempt)
        self._calls: collectives.CollectiveLog | None = None
        self._watch: Watch | None = None
        self._black_box: flight.BlackBox | None = None
        self._telemetry: Telemetry | None = None
        self._tracker: Tracker | None = None
        self._profiler: ProfilerWindow | None = None
        self._exit_code = 0

    def start(self) -> None:
        """Install observers and start threads according to the level. Call it before process groups are created."""
        if not self._on:
            return
        with guarded("record"):
            self._writer.start()
        self.event("start", world_size=self.world_size, device=str(self.device))
        observers: list[Observer] = []
        with guarded("nvtx"):
            observers.append(Nvtx())
        with guarded("heartbeat"):
            self._heartbeat.start()
            observers.append(self._heartbeat)
        observe([*observers, ProfilerMarks(), *([self._spans] if self._full else [])], report)
        with guarded("stacks"):
            faulthandler.enable()  # Stacks of all threads, on this rank's stderr, when the interpreter crashes.
        with guarded("ring"):
            self._calls = wrappers.record(self.paths.ring(self.rank), self.rank, self.world_size, self.attempt)
        record = self.config.record
        with guarded("black box"):
            self._black_box = flight.BlackBox(self.paths, self.rank, self.attempt, record.black_box_every_s)
            self._black_box.start()
        if self.local_rank == 0:
            with guarded("telemetry"):
                lines = JsonLines(self.paths.telemetry(self.node_rank), self._writer)
                uuids = partial(cuda_uuids, self.device)
                self._telemetry = Telemetry(lines, self.paths, self.rank, record.telemetry_every_s, uuids)
                self._telemetry.start()
        if self.rank == 0 and self.config.tracker.name != "none":
            with guarded("tracker"):
                self._tracker = Tracker(self.config, self.paths.root)
                self._tracker.start()
        if self._full:
            latest = max(1, self.config.train.steps - record.profile_steps + 1)
            window = (min(record.profile_start, latest), record.profile_steps, record.profile_stacks)
            self._profiler = ProfilerWindow(self.paths.trace(self.rank), self.rank, self.device, *window)
            if self.device.type == "cuda":
                with guarded("allocator history"):
                    # The last events of the allocator, with Python stacks (private API of torch).
                    torch.cuda.memory._record_memory_history(max_entries=memory.HISTORY_ENTRIES, stacks="python")

    def watch(self, store: Store, ended: Callable[[Verdict], None], hosted: bool = False) -> None:
        """Start the live watch, after rendezvous.

        `ended` is called on one rank, from the watch's thread, when the run hangs; all ranks exit after it. `hosted`:
        the store lives in rank 0's process.
        """
        if self._calls is None or not self.config.watch.enabled or self.world_size == 1:
            return
        with guarded("watch"):
            own = (self.config.watch, self._calls, self.paths, self.device.type)
            dump = partial(run_all, flight.last_dumps(self.paths, self.rank, self._black_box))
            self._watch = Watch(*own, lambda: (self._heartbeat.beats, flight.group_status()), dump, ended, hosted)
            self._watch.start(store)

    def event(self, name: str, **fields: Any) -> None:
        """Record an event at the current time.

        Lifecycle: start, first_step, evaluation, checkpoint_begin, checkpoint_end, failure, end; numerics: non_finite,
        replicas_equal, replica_divergence (record.numerics).
        """
        if self._on:
            with guarded("events"):
                about = {"kind": "event", "name": name, "time_s": time.time()}
                self._event_lines.append({**about, "rank": self.rank, "attempt": self.attempt, **fields})
        if name == "non_finite":
            self.alert(f"{fields['figure']} is {fields['value']}", f"{self.paths.root.name}, step {fields['step']}")

    def alert(self, title: str, text: str) -> None:
        """Send an urgent message to the tracker, on rank 0."""
        if self._tracker is not None:
            with guarded("tracker"):
                self._tracker.alert(title, text)

    def begin_step(self, step: int) -> None:
        """Mark the start of step `step`, counted from 1."""
        if not self._on:
            return
        with guarded("record"):
            self._heartbeat.begin_step(step)
            if self._calls is not None:
                self._calls.begin_step(step)
            if self._full:
                self._spans.begin_step(step)
                self._memory.append(memory.memory_record(self.device, step))
        if self._profiler is not None:
            with guarded("profiler"):
                self._profiler.begin_step(step)

    def metrics(self, record: dict[str, Any]) -> None:
        """Append a record to metrics.jsonl and the tracker, on rank 0; other ranks return immediately."""
        if self.rank != 0 or not self._on:
            return
        with guarded("metrics"):
            timed = {"time_s": time.time(), **record}
            self._metrics.append(timed)
            if self._tracker is not None:
                self._tracker.log(timed)

    def summary(self, record: dict[str, Any]) -> None:
        """Write summary.json and tell the tracker, on rank 0."""
        if self.rank != 0 or not self._on:
            return
        with guarded("summary"):
            self._writer.submit("summary", partial(write_json, self.paths.summary, record))
            if self._tracker is not None:
                self._tracker.summary(record.get("figures", record))

    def parity(self, record: dict[str, Any]) -> None:
        """Write parity.json, on rank 0; `dtk.record.parity` describes the record."""
        if self.rank == 0 and self._on:
            with guarded("parity"):
                self._writer.submit("parity", partial(write_json, self.paths.parity, record))

    def failed(self, error: BaseException) -> None:
        """Leave the watch, then dump flight recorder, stacks and, on CUDA, the allocator, in at most FAILED_S."""
        if not self._on:
            return
        self._exit_code = 1
        if self._watch is not None:
            with guarded("watch"):
                self._watch.close(failed=True)
        self.event("failure", type=type(error).__name__, message=masked_text(str(error))[:1000])
        dumps = flight.last_dumps(self.paths, self.rank, self._black_box)
        if self._full and self.device.type == "cuda" and is_out_of_memory(error):
            dumps["allocator snapshot"] = partial(memory.dump_allocator, self.paths.memory_snapshot(self.rank))
        bounded("failure dumps", partial(run_all, dumps), FAILED_S)

    def close(self) -> None:
        """Flush and stop everything, each part within its limit, which after a failure is HASTY_S for what is slow."""
        if not self._on:
            return
        hasty = bool(self._exit_code)
        if self._watch is not None:
            with guarded("watch"):
                self._watch.close(failed=hasty)
        observe(())
        self.event("end", exit_code=self._exit_code)
        with guarded("record"):
            self._spans.begin_step(None)
            self._heartbeat.close(failed_in() if hasty else "end")
        parts: dict[str, Callable[[], object]] = {}
        if self._calls is not None:
            parts |= {"collectives": wrappers.remove, "ring": self._calls.ring.close}
        if self._profiler is not None:
            parts["profiler"] = partial(self._profiler.close, HASTY_S if hasty else TRACE_S)
        if self._telemetry is not None:
            parts["telemetry"] = self._telemetry.close
        if self._black_box is not None:
            parts["black box"] = self._black_box.close
        parts["record"] = partial(self._writer.close, HASTY_S if hasty else FLUSH_S)
        if self._tracker is not None:
            parts["tracker"] = partial(self._tracker.close, self._exit_code, HASTY_S if hasty else CLOSE_S)
        run_all(parts)
        flush_reports()
