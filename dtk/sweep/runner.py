"""Runs the points of a sweep, whether or not each succeeds; serially, as concurrent jobs falsify each other's times."""

import dataclasses
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Event

from diagnostics.contract.artifacts import RunPaths, complete_checkpoints, read_status
from diagnostics.contract.invocation import typed
from dtk.config.compose import Composed
from dtk.config.resume import Resumed, resume
from dtk.console.output import print_line
from dtk.errors import INTERRUPTED, USER_ERROR, DtkError
from dtk.launch.prepare import place_point
from dtk.launch.stopping import STOPPED
from dtk.start.point import FAILED, run_point
from dtk.sweep.folder import Sweep, Trial
from dtk.sweep.points import Point

STOPPED_EARLY = "stopped early"
DONE = ("finished", STOPPED_EARLY, "queued")
"""States of runs that `--resume` does not restart; another scheduler owns a queued run."""
Follow = Callable[[Trial], AbstractContextManager[Event]]
"""Watches a run as long as the context is open, and may stop it, which the event says; `trial.run` is set once its run
folder exists."""


class Runner:
    """Runs points and records their results."""

    def __init__(self, sweep: Sweep, config_dir: Path | None, total: int | None, follow: Follow | None = None) -> None:
        self.sweep = sweep
        self.config_dir = config_dir
        self.total = total
        """Total number of runs, for the headlines; None = the search decides."""
        self.follow = follow or (lambda trial: nullcontext(Event()))
        self.codes: list[int] = []
        self._number = 0

    def interleaved(self, points: Sequence[Point]) -> int:
        """Run all points, then repeat (ABAB), so that a drift of the machine affects all alike; return `exit_code`."""
        turns = ((point, repeat) for repeat in range(self.sweep.about.repeats) for point in points)
        all(self.once(point, repeat) for point, repeat in turns)  # The first stopped run ends the loop.
        return self.exit_code()

    def once(self, point: Point, repeat: int) -> bool:
        """Run a point once unless it is done; return whether the sweep continues."""
        self._number += 1
        before = self.sweep.last(point.index, repeat)
        if before is not None and before.state in DONE:
            return True
        earlier = [t for number in range(repeat) if (t := self.sweep.last(point.index, number)) is not None]
        if before is None and earlier and not any(trial.state in DONE for trial in earlier):
            return True  # All its runs so far failed: another would cost the same again.
        self._headline(point, repeat)
        trial = self.sweep.begin(point.index, repeat)
        code = self._run(point, before, trial)
        self.codes.append(code)
        return code not in STOPPED

    def exit_code(self) -> int:
        """Return the exit code of the signal that stopped the sweep, else the worst exit code of its runs."""
        stopped = [code for code in self.codes if code in STOPPED]
        return stopped[0] if stopped else max(self.codes, default=0)

    def refuse(self, point: Point, error: DtkError) -> None:
        """Record a proposed point that cannot be launched; the sweep continues with the others."""
        self._number += 1
        self._headline(point, 0)
        print(f"dtk: {error}", file=sys.stderr, flush=True)
        self.sweep.end(self.sweep.begin(point.index, 0), "refused", USER_ERROR, str(error))
        self.codes.append(USER_ERROR)

    def _run(self, point: Point, before: Trial | None, trial: Trial) -> int:
        try:
            with self.follow(trial) as stopped_early:
                placed = place_point(self._start(point, before))
                code = run_point(*placed, opened=lambda paths: self.sweep.opened(trial, paths.root.absolute()))
            state, reason = _ending(trial.run, code)
            if stopped_early.is_set() and state == "preempted" and code not in STOPPED:
                state, reason = STOPPED_EARLY, "the search ended it: others were better at this step"
        except DtkError as error:
            print(f"dtk: {error}", file=sys.stderr, flush=True)
            code, state, reason = USER_ERROR, "refused" if trial.run is None else "failed", str(error)
        except KeyboardInterrupt:
            code, state, reason = INTERRUPTED, "preempted", "stopped before the first step"
        except Exception as error:  # Other points are not affected.
            traceback.print_exc()
            code, state, reason = FAILED, "failed", f"{type(error).__name__}: {error}"
        self.sweep.end(trial, state, code, reason)
        return code

    def _start(self, point: Point, before: Trial | None) -> Resumed:
        """Start from the last checkpoint of an interrupted run, if any, else from the beginning."""
        fresh = point.thaw(self.sweep.about.id)
        run = before.run if before is not None and before.state in ("preempted", "running") else None
        if run is None or not complete_checkpoints(RunPaths(run)):
            return fresh
        config = dataclasses.replace(fresh.composed.config, resume=str(run))
        try:
            return resume(Composed(config, []), self.config_dir)
        except DtkError as error:
            print_line(f"{typed(run)} cannot be continued ({error}); starting the point again")
            return fresh

    def _headline(self, point: Point, repeat: int) -> None:
        repeats, of = self.sweep.about.repeats, "" if self.total is None else f"/{self.total}"
        again = f" (repeat {repeat + 1} of {repeats})" if repeats > 1 else ""
        print_line(f"\n[{self._number}{of}] {point.name or 'unchanged'}{again}")


def _ending(run: Path | None, code: int) -> tuple[str, str]:
    if run is None:  # Handed to a cluster that makes the folder itself, or not launched.
        return ("refused", "preflight: it would hang") if code else ("queued", "")
    try:
        status = read_status(RunPaths(run).status)
    except (OSError, ValueError):
        return "failed" if code else "finished", ""
    return str(status.state), status.reason
