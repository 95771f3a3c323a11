"""Runs a sweep on this machine without a server, of a file or of lists on the command line (`dtk run -m`): serially, as
concurrent jobs falsify each other's times, whether or not each point succeeds. Of a file, the points of a grid are
composed at once, others one by one, and `following` ends runs that do worse than others.
"""

import argparse
import dataclasses
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from diagnostics.contract.artifacts import RunPaths, complete_checkpoints, read_status
from diagnostics.contract.formatting import command, counted, typed
from dtk.config.compose import Composed, compose, lists_of_files
from dtk.config.overrides import parse
from dtk.config.resume import Resumed, resume
from dtk.console.output import print_line
from dtk.errors import INTERRUPTED, USER_ERROR, DtkError, Errors
from dtk.launch.prepare import compose_point, place_point, print_configuration
from dtk.launch.stopping import STOPPED, ask_ranks
from dtk.start.point import FAILED, run_point
from dtk.sweep import file as sweep_file
from dtk.sweep.file import spelled
from dtk.sweep.folder import (
    DONE,
    NO_RESUME,
    STOPPED_EARLY,
    Point,
    Sweep,
    Trial,
    combinations,
    create,
    find,
    freeze,
    take_repeats,
)
from dtk.sweep.search import Search
from dtk.sweep.summary import look, print_ending, tried

Follow = Callable[[Trial], AbstractContextManager[Event]]
"""Watches a run while the context is open, and may stop it (event). `trial.run` is set once its folder exists."""


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


_errors = Errors(__file__)
LOOK_S = 0.5  # Interval of reading a run's metrics.
_ANNOUNCED_POINTS = 20  # Composing more points takes seconds.
MULTIRUN = "multirun"  # Method of the sweeps of `dtk run -m`.


@dataclass(frozen=True, slots=True)
class Job:
    """A sweep file and the options typed with it."""

    file: sweep_file.SweepFile
    search: Search
    extra: list[str]
    """Overrides of every point, applied after those of the file."""
    repeats: int
    cap: int | None
    """Maximum number of runs of the search."""
    config_dir: Path | None

    def overrides(self, values: dict[str, Any]) -> list[str]:
        """Return all overrides of a point."""
        chosen = [spelled(key, value) for key, value in values.items()]
        return [*without_tracker(self.file.fixed), *chosen, *self.extra]

    def name(self, values: dict[str, Any]) -> str:
        """Return the name of a point: the parameters that have more than one value."""
        fixed = {key for key, space in self.file.parameters.items() if "value" in space}
        return " ".join(spelled(key, value) for key, value in values.items() if key not in fixed)

    def source(self) -> dict[str, Any]:
        """Return the key by which an earlier sweep counts as the same."""
        folder = None if self.config_dir is None else str(self.config_dir.absolute())
        return {"file": self.file.content, "overrides": self.extra, "config_dir": folder}

    def spaces(self) -> dict[str, list[Any]]:
        """Return parameter -> listed values, for parameters that list any."""
        named = {key: sweep_file.values(space) for key, space in self.file.parameters.items()}
        return {key: values for key, values in named.items() if values}


def without_tracker(fixed: Sequence[str]) -> list[str]:
    """Return the file's overrides without the tracker, which is meant for W&B's agent."""
    return [text for text in fixed if not parse(text).key_or_group.startswith("tracker")]


def check(job: Job) -> None:
    """Reject what cannot be run, before the first run.

    DtkError for options that do not go together; for random and Bayesian searches an unknown key, choice or type in any
    value of a list or end of a range.
    """
    for text in (*job.extra, *job.file.fixed, *(f"{key}=" for key in job.file.parameters)):
        if text.startswith("resume="):
            raise NO_RESUME
    for text in job.extra:
        _errors.refuse({"parameter": parse(text).key_or_group in job.file.parameters}, text=text)
    _errors.refuse({"unequal": job.file.stops_early and job.repeats > 1})
    if job.file.method == "grid":
        return
    endless = {"repeats": job.repeats > 1, "no_end": job.cap is None}
    _errors.refuse(endless, count=job.repeats, method=job.file.method)
    first = {key: values[0] for key, values in job.spaces().items()}
    compose(job.overrides(first), job.config_dir)
    for key, values in job.spaces().items():
        for value in values[1:]:
            compose(job.overrides({**first, key: value}), job.config_dir)


def grid_points(job: Job) -> list[Point]:
    """Return all points of a grid, frozen; DtkError if any of them is invalid."""
    proposed = job.search.grid()[: job.cap]
    if len(proposed) > _ANNOUNCED_POINTS:
        print_line(f"composing {counted(len(proposed), 'point')}")
    points = []
    for index, values in enumerate(proposed):
        name = job.name(values)
        try:
            points.append(freeze(index, name, job.overrides(values), job.config_dir, values=values))
        except DtkError as error:
            raise DtkError(f"point {index + 1} ({name}): {error.what}", error.why, error.fix) from error
    return points


def opened(job: Job, *, resume: bool) -> Sweep:
    """Resume the newest sweep of the same file and overrides, or freeze what can be known now and make a new one."""
    first = {key: values[0] for key, values in job.spaces().items()}
    points = [] if resume or job.file.method != "grid" else grid_points(job)
    folder = Path(compose(job.overrides(first), job.config_dir).config.runs_folder)
    if resume:
        return find(folder, job.file.method, job.source(), job.repeats)
    return create(folder, job.file.method, job.file.path.stem, job.source(), job.repeats, points)


def run(job: Job, sweep: Sweep) -> int:
    """Run the remaining points of a sweep; return the exit code of `Runner.exit_code`."""
    follow = partial(following, job.search, sweep) if job.file.stops_early else None
    runner = Runner(sweep, job.config_dir, total_runs(job, sweep), follow)
    if job.file.method == "grid":
        return runner.interleaved(sweep.points)
    if all(runner.once(point, 0) for point in sweep.points if point.config):
        _propose(job, sweep, runner)
    return runner.exit_code()


def total_runs(job: Job, sweep: Sweep) -> int:
    """Return the maximum number of runs."""
    return len(sweep.points) * job.repeats if job.file.method == "grid" else job.cap or 0


def _propose(job: Job, sweep: Sweep, runner: Runner) -> None:
    """Propose and run one point after another, each chosen from all earlier results and checked before its launch."""
    assert job.cap is not None
    while len(sweep.points) < job.cap:
        earlier = tried(sweep)
        if any(job.search.reached(point) for point in earlier):
            print_line(f"\n{job.file.metric['name']} has reached its target {job.file.metric['target']}")
            return
        index = len(sweep.points)
        values = job.search.propose(earlier, f"{sweep.about.id}:{index}")
        if values is None:
            return
        name, overrides = job.name(values), job.overrides(values)
        try:
            point = freeze(index, name, overrides, job.config_dir, values=values)
        except DtkError as error:
            sweep.add(Point(index, name, overrides, {}, values, "", None))
            runner.refuse(sweep.points[-1], error)
            continue
        sweep.add(point)
        if not runner.once(point, 0):
            return


@contextmanager
def following(search: Search, sweep: Sweep, trial: Trial) -> Iterator[threading.Event]:
    """Watch a run while the context is open; yields what is set when the search ends the run."""
    over, stopped = threading.Event(), threading.Event()
    thread = threading.Thread(target=_watch, args=(search, sweep, trial, over, stopped), daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        over.set()
        thread.join()


def _watch(search: Search, sweep: Sweep, trial: Trial, over: threading.Event, stopped: threading.Event) -> None:
    seen_bytes = 0
    others = None
    values = sweep.points[trial.point].values
    while not over.wait(LOOK_S):
        if stopped.is_set():
            ask_ranks()  # Again: some may not have listened yet.
            continue
        size_bytes = 0
        if trial.run is not None:
            with suppress(OSError):
                size_bytes = RunPaths(trial.run).metrics.stat().st_size
        if size_bytes == seen_bytes:
            continue
        seen_bytes = size_bytes
        others = tried(sweep, but=trial) if others is None else others
        if search.ends(look(trial, values), others):
            stopped.set()
            ask_ranks()
            with suppress(DtkError):  # A full disk behind standard output is no reason to let the run continue.
                # In one piece: the console of the run writes at the same time.
                print_line("the search ends this run: others were better at this step")


def multirun(arguments: argparse.Namespace) -> int:
    """Run every combination `repeats=` times, and compare the runs; return the worst exit code, see `dtk.run.main`.

    All points are composed and frozen before the first one runs. DtkError if a point is invalid; none has run then.
    """
    given, repeats = take_repeats(arguments.overrides)
    config_dir, earlier, trust = arguments.config_dir, arguments.rerun, arguments.trust
    listed = [] if earlier is not None else lists_of_files(given, config_dir)
    combined = combinations([*listed, *given], config_dir)
    if arguments.cfg:
        for _, overrides in combined:
            print_configuration(compose_point(overrides, config_dir, earlier, trust=trust))
        return 0
    folders = {"config_dir": config_dir, "rerun": earlier}
    absolute = {name: None if path is None else str(path.absolute()) for name, path in folders.items()}
    source = {"overrides": given, **absolute}  # What makes two commands the same sweep.
    if arguments.resume:
        config = compose_point(combined[0][1], config_dir, earlier, trust=trust).composed.config
        sweep = find(Path(config.runs_folder), MULTIRUN, source, repeats)
    else:  # Every point is frozen before the folder is made: what is wrong anywhere leaves nothing behind.
        points = [
            freeze(index, name, overrides, config_dir, earlier=earlier, trust=trust)
            for index, (name, overrides) in enumerate(combined)
        ]
        sweep = create(Path(points[0].config["runs_folder"]), MULTIRUN, MULTIRUN, source, repeats, points)
    options = ["--config-dir", str(config_dir)] if config_dir else []
    options += ["--rerun", str(earlier)] if earlier else []
    again = command("run", "-m", "--resume", *options, *arguments.overrides)
    try:
        total = len(sweep.points) * repeats
        code = Runner(sweep, config_dir, total).interleaved(sweep.points)
        print_ending(sweep, code, again, total)
    finally:
        sweep.close()
    return code
