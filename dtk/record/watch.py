"""The live watch: a thread per rank that detects a proven desync or a stall, and ends the run with the reason. Ranks
publish counters and hashes over a separate store connection. A rank blocked in a collective has released the GIL, so
its thread runs; when rank 0 is silent, the next rank takes over.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import msgspec
import torch
from torch._C._distributed_c10d import PrefixStore, Store

from diagnostics.contract.artifacts import ENDED_BY_WATCH, PAUSED, RunPaths, Verdict, read_heartbeat, write_json
from diagnostics.evidence.ring.format import parse
from dtk.config.schema import WatchConfig
from dtk.parallel.regions import current
from dtk.record import flight
from dtk.record.activity import BUSY, Activity, Pause, scheduled_s, where_main_thread_is
from dtk.record.collectives import PLUMBING, CollectiveLog
from dtk.record.guard import bounded, guarded
from dtk.record.verdict import Called, History, Judge, Place, Report, called_at, desync, left_at, place_of, stall
from dtk.record.watch_environment import StallAnswer

EVERY_S = 0.5  # Chosen: small compared to the timeouts of a watch.
LOOKS = 5  # Chosen: samples of the main thread between two ticks, of 4 us each (benchmarks/ring_cost.py).
RANKS_PER_S = 1000  # Chosen: reports that the judge reads per second, of 30 us each (ring_cost.py): 3 % of a core.
RECENT = 32  # Chosen: hashes published while a group progresses; a stalled group publishes all it has, once.
MOST_PAUSES = 100  # Chosen: the number of last pauses that are kept.
DUMP_S = 3.0  # Chosen: a working disk answers in some 10 ms.
ANSWER_S = DUMP_S + 1.0  # Chosen: timeout of the judge for each rank's answer, which follows its dumps.
TURN_S = 2.0  # Chosen: what each rank waits longer than the one before it to judge in place of rank 0.
POLL_S = 0.05  # Chosen: far below the timeouts for which the watch waits.
SILENT_S = 3.0  # Chosen: a rank whose thread has not reported for this long is not waited for.
_STDLIB = (sysconfig.get_paths()["stdlib"], "<frozen")


@dataclass(eq=False)
class Watch:
    """The live watch of one rank."""

    config: WatchConfig
    log: CollectiveLog
    paths: RunPaths
    device_type: str
    progress: Callable[[], object]
    """Returns a value that changes when the rank makes progress."""
    dump: Callable[[], None]
    ended: Callable[[Verdict], None] | None = None
    hosted: bool = False
    """Whether the store is in rank 0's process: rank 0 then leaves last, so that no rank talks to a dead store."""

    def __post_init__(self) -> None:
        ring = self.log.ring
        self.rank, self.world_size, self.attempt = ring.rank, ring.world_size, ring.attempt
        self._activity = Activity(self.device_type)
        self._idle_s = 0.0
        self._ticks = 0
        self._pauses: list[tuple[float, float]] = []
        self._leaving = ""
        self._stall_answer = StallAnswer(self.paths, self.rank, self.dump)
        self._moved: object = None
        self._still: dict[str, int] = {}
        self._judge = Judge(self.world_size)
        self._beat = b""
        self._ran: dict[int, tuple[float, float]] = {}
        """Silent rank -> time of the last check, and its CPU seconds until then."""
        self._beat_age_s = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, store: Store) -> None:
        """Start the thread."""
        own = PrefixStore("dtk/watch", store.clone())  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._run, args=(own,), name="dtk-watch", daemon=True)
        self._thread.start()

    def close(self, failed: bool) -> None:
        """Announce that this rank leaves, so that the others do not wait for it."""
        self._leaving = "failed" if failed else "end"
        self._stop.set()
        if self._thread is not None:
            self._thread.join(4 * EVERY_S)

    def _run(self, store: Store) -> None:
        last_s = time.monotonic()
        while True:
            pause = Pause()
            # Sample the place of the main thread until the next tick.
            for _ in range(LOOKS):
                if done := self._stop.wait(EVERY_S / LOOKS):
                    break
                with guarded("watch"):
                    self.log.sample(sys._current_frames().get(threading.main_thread().ident or 0))
            if (paused_s := pause.lasted_s()) is not None:
                with guarded("watch"):
                    self._pauses.append((time.time() - paused_s, paused_s))
                    path = self.paths.pauses(self.attempt, self.rank)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_json(path, {"kind": PAUSED, "rank": self.rank, "pauses": self._pauses[-MOST_PAUSES:]})
            now_s = time.monotonic()
            # A suspended job must not appear stalled when it continues.
            elapsed_s, last_s = min(now_s - last_s, 2 * EVERY_S), now_s
            try:
                self._tick(store, elapsed_s)
                if not done and not (self.hosted and store.check(["closing"])):
                    continue
                if self.hosted:
                    store.set(f"gone/{self.rank}", "1")
                    if self.rank == 0:  # Wait a moment for the others to disconnect from the store.
                        store.set("closing", "1")
                        self._await(partial(store.check, [f"gone/{r}" for r in range(self.world_size)]), 2 * EVERY_S)
                return
            except RuntimeError:
                return  # The store has closed: the run is being terminated.

    def _tick(self, store: Store, elapsed_s: float) -> None:
        self._ticks += 1
        report = ""
        with guarded("watch"):
            report = self._report(elapsed_s)
        if report:
            store.set(f"rank/{self.rank}", report)
        if self._leaving:
            return
        self._stall_answer.answer(self._idle_s, bool(self.log.open))
        if store.check(["verdict"]):
            self._end(store, json.loads(store.get("verdict")))
        elif self._is_judge(store, elapsed_s):
            before_s = self._beat_age_s if self.rank else 0.0
            self._judge.read(store, elapsed_s * self._judge_every(), before_s, self._computes)
            finding = self._judge.find(self._limit_s(stepping=True), self._limit_s(stepping=False))
            if finding is not None:
                store.compare_set("verdict", "", json.dumps({**finding, "judge": self.rank}))
                self._end(store, json.loads(store.get("verdict")))

    def _report(self, elapsed_s: float) -> str:
        moved = (self.log.ring.issued, self.log.ring.returned, self.progress())
        works = self._activity.works(elapsed_s)
        alive = moved != self._moved or (works and not self.log.open)
        self._idle_s = 0.0 if alive else self._idle_s + elapsed_s
        self._moved = moved
        groups: dict[str, History] = {}
        with self.log.lock:
            for group in self.log.groups.values():
                if group is not None and group.count:
                    history = tuple(group.history)
                    moves = self._still.get(group.key) != group.count
                    self._still[group.key] = group.count
                    groups[group.key] = group.count, history[-RECENT:] if moves else history
        report = Report(self._ticks, self._idle_s, self.log.steps > 1, self._leaving, self.log.sound, groups)
        return msgspec.json.encode(report).decode()

    def _judge_every(self) -> int:
        """Return the ticks from one judgement to the next: 1 below 500 ranks, 3 at 1,000."""
        return 1 + self.world_size // int(RANKS_PER_S * EVERY_S)

    def _is_judge(self, store: Store, elapsed_s: float) -> bool:
        """Whether this rank judges: rank 0, or the next one if it has been silent for longer than a stall may last."""
        if self.rank == 0:
            due = self._ticks % self._judge_every() == 0
            if due:
                store.set("judge", str(self._ticks))
            return due
        beat = store.get("judge") if store.check(["judge"]) else b""
        alive = beat != self._beat or self._computes(0, self._beat_age_s)
        self._beat_age_s = 0.0 if alive else self._beat_age_s + elapsed_s
        self._beat = beat
        return self._beat_age_s > self._limit_s(stepping=True) + TURN_S * (self.rank - 1)

    def _computes(self, rank: int, silent_s: float) -> bool:
        """Whether a silent rank's main thread uses a core: native code that holds the GIL silences the watch.

        Only for ranks of this host and jobs on the CPU: a thread that waits for a CUDA device may busy-wait.
        """
        pid = self._pid(rank) if silent_s >= SILENT_S and self.device_type == "cpu" else None
        if pid is None or (scheduled := scheduled_s(pid)) is None:
            return False
        now = time.monotonic(), sum(scheduled)
        before, self._ran[rank] = self._ran.get(rank, now), now
        return now[1] - before[1] > BUSY * (now[0] - before[0])

    def _pid(self, rank: int) -> int | None:
        beat = read_heartbeat(self.paths.heartbeat(rank))
        is_current = beat is not None and (beat.attempt, beat.host) == (self.attempt, socket.gethostname())
        return beat.pid if beat is not None and is_current else None

    def _limit_s(self, stepping: bool) -> float:
        config = self.config
        return config.stall_timeout_s if stepping else max(config.stall_timeout_s, config.first_step_timeout_s)

    def _end(self, store: Store, finding: dict[str, Any]) -> None:
        """Dump, report the place of this rank, let the judge conclude, and exit the process."""
        try:
            answer = self._answer(finding)
            bounded("hang dumps", self.dump, DUMP_S)
            store.set(f"answer/{self.rank}", msgspec.json.encode(answer).decode())
            if finding["judge"] == self.rank:
                self._conclude(store, finding)
            elif self._await(lambda: store.check(["concluded"]), ANSWER_S + 1):
                self._keep(Verdict(**json.loads(store.get("concluded"))))
        finally:
            for stream in (sys.stdout, sys.stderr):
                with guarded("watch"):
                    stream.flush()
            os._exit(ENDED_BY_WATCH)

    def _answer(self, finding: dict[str, Any]) -> Called | Place | None:
        """Return this rank's calls around the position in question, or in a stall its current place."""
        ring = parse(self.log.ring.snapshot())
        if finding["kind"] == "desync":
            return called_at(ring, finding["group"], finding["position"])
        step, region = (self.log.step if self.log.step >= 0 else None), current()
        open_ids = {number for _, number, _ in list(self.log.open.values())}
        for record in reversed(ring.records):
            if record.id in open_ids:
                return place_of(record, self.rank, step)
        where, named = where_main_thread_is((*PLUMBING, *_STDLIB)), region.name if region is not None else None
        with guarded("watch"):
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            in_autograd = frame is not None and frame.f_code is torch.autograd.graph._engine_run_backward.__code__
            # DDP's C++ hooks issue collectives there that only torch's own recorder sees.
            if in_autograd and (call := flight.unfinished(self.rank)) is not None:
                return Place(self.rank, call.text, where, call.key.label, step, named, call.key.label)
        return Place(self.rank, "", where, step=step, region=named)

    def _conclude(self, store: Store, finding: dict[str, Any]) -> None:
        """Wait for the other ranks' answers, then write the verdict for the launcher."""
        staying = self._judge.staying()
        awake = [rank for rank in staying if (peer := self._judge.peers[rank]).raw and peer.silent_s < SILENT_S]
        self._await(lambda: all(store.check([f"answer/{rank}"]) for rank in awake), ANSWER_S)
        answers = {rank: store.get(f"answer/{rank}") for rank in staying if store.check([f"answer/{rank}"])}
        silent = [rank for rank in staying if rank not in answers]
        if finding["kind"] == "desync":
            called = [side for raw in answers.values() if (side := msgspec.json.decode(raw, type=Called | None))]
            # A side that left the run or does not answer is known by its records.
            mute = sorted(set(range(self.world_size)) - {side.rank for side in called})
            called += left_at(self.paths, self.attempt, mute, finding["group"], finding["position"])
            verdict = desync(called, finding["position"], self.attempt, time.time())
        else:
            places = [msgspec.json.decode(raw, type=Place) for raw in answers.values()]
            verdict = stall(places, silent, self._judge.departures(), finding["stood_s"], self.attempt, time.time())
        self._keep(verdict)
        if self.ended is not None:
            self.ended(verdict)
        store.set("concluded", json.dumps(asdict(verdict)))
        for rank in silent:
            # A suspended process of this host ignores the launcher's SIGTERM.
            if (pid := self._pid(rank)) is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _keep(self, verdict: Verdict) -> None:
        """Write the verdict on every node, in case each has its own folder."""
        path = self.paths.verdict(self.attempt)
        if not path.exists():
            write_json(path, verdict)

    def _await(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        ends_s = time.monotonic() + timeout_s
        while not (done := ready()) and time.monotonic() < ends_s:
            time.sleep(POLL_S)
        return done
