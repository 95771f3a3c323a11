"""The record of a sweep, `<runs_folder>/sweeps/<id>/`: its points, frozen, and which run each became.
Written once and then only appended to, so a sweep that was killed at any moment can continue.
"""

import fcntl
import json
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import msgspec

from diagnostics.contract.artifacts import RunPaths, read_status, write_json
from diagnostics.contract.files import read_json
from diagnostics.contract.formatting import typed
from diagnostics.contract.origins import at_launch, dumps, loads
from diagnostics.contract.secrets import masked
from diagnostics.runs.records import objects
from dtk.config.compose import Composed, expand
from dtk.config.resume import Resumed
from dtk.config.strict import from_plain
from dtk.console.output import print_line
from dtk.errors import DtkError, refused
from dtk.launch.prepare import compose_point, place_point
from dtk.record.run_folder import now, unwritable, writing

REPEATS = "repeats"  # Typed like an override, but belongs to the sweep: the number of runs of each point.
MOST_REPEATS = 100  # Chosen: more runs hardly reduce the intervals.
STOPPED_EARLY = "stopped early"
DONE = ("finished", STOPPED_EARLY, "queued")
"""States of runs that `--resume` does not restart; another scheduler owns a queued run."""
NO_RESUME = DtkError("resume= continues one run", "a sweep starts new ones", "use --resume to continue a sweep")


@dataclass(frozen=True, slots=True)
class Point:
    """One checked point with every key of its configuration."""

    index: int
    name: str
    """Name that distinguishes the point from the others: `strategy=ddp`."""
    overrides: list[str]
    """All overrides of the point, in Hydra's grammar."""
    config: dict[str, Any]
    """Resolved configuration, as in a run folder; empty for a proposed point that could not be composed."""
    values: dict[str, Any]
    """Parameter -> value proposed by the search; empty without a search."""
    origins: str
    """Which file or override set each key, in the form of origins.json."""
    earlier: str | None
    """The run folder whose configuration is used instead of conf/."""

    def thaw(self, sweep: str) -> Resumed:
        """Return the point as a separate run, as it was composed, even if conf/ has changed since.

        W&B groups its runs by the id of the `sweep`, or as chosen. DtkError if the values do not fit this dtk.
        """
        try:
            origins = loads(self.origins.encode())
        except ValueError as error:
            raise DtkError(f"point {self.index + 1} of the sweep is damaged", str(error)) from error
        tracker = self.config.get("tracker") or {}
        grouped = {"group": sweep} if tracker.get("name") == "wandb" and not tracker.get("group") else {}
        plain = {**self.config, "tracker": {**tracker, **grouped}}
        composed = Composed(from_plain(plain), list(self.overrides), origins)
        return Resumed(composed, None, 0, None if self.earlier is None else Path(self.earlier))


def take_repeats(overrides: Sequence[str]) -> tuple[list[str], int]:
    """Return the overrides without `repeats=N`, and N (default 1); DtkError unless it is 1 to `MOST_REPEATS`."""
    rest = [text for text in overrides if not text.startswith(f"{REPEATS}=")]
    given = [text.partition("=")[2] for text in overrides if text.startswith(f"{REPEATS}=")]
    if not given:
        return rest, 1
    value = given[-1]
    if not value.isdecimal() or not 1 <= int(value) <= MOST_REPEATS:
        raise DtkError(f"{REPEATS}={value}", f"a sweep is repeated 1 to {MOST_REPEATS} times", f"write {REPEATS}=3")
    return rest, int(value)


def freeze(
    index: int,
    name: str,
    overrides: list[str],
    config_dir: Path | None,
    *,
    earlier: Path | None = None,
    values: dict[str, Any] | None = None,
    trust: bool = False,
) -> Point:
    """Compose and check one point as a run of its own; DtkError if the point cannot be launched."""
    composed = compose_point(overrides, config_dir, earlier, trust=trust)
    if composed.paths is not None:
        raise NO_RESUME
    settled = place_point(composed)[0].composed
    origins = dumps(at_launch(settled.origins, settled.plain))
    folder = None if earlier is None else str(earlier.absolute())
    return Point(index, name, list(overrides), settled.plain, values or {}, origins, folder)


def combinations(typed: Sequence[str], config_dir: Path | None) -> list[tuple[str, list[str]]]:
    """Return every combination of the lists that were typed: (what sets it apart, its overrides).

    DtkError for bad syntax, a glob that matches nothing, too many points.
    """
    points = expand(list(typed), config_dir)
    differs = [len(set(column)) > 1 for column in zip(*points)]
    return [(" ".join(text for text, differ in zip(point, differs) if differ), point) for point in points]


SCHEMA_VERSION = 1  # Of sweep.json; readers refuse newer ones.
FOLDER = "sweeps"  # In the runs folder. It holds no record of a run, so nothing takes it for one.
_LARGEST_BYTES = 64 * 1024 * 1024  # Chosen: 10,000 points take a few MiB.


@dataclass(frozen=True, slots=True)
class About:
    """The identity of a sweep: sweep.json, written once."""

    id: str
    method: str
    """`multirun`, `grid`, `random` or `bayes`."""
    source: dict[str, Any]
    """What identifies the sweep: lists or file, and further overrides."""
    repeats: int
    created: str
    schema_version: int = SCHEMA_VERSION


@dataclass(slots=True)
class Trial:
    """One run of a point."""

    number: int
    """Its place in the order of the starts."""
    point: int
    repeat: int
    run: Path | None = None
    """Its run folder; None if none was created."""
    state: str = "running"
    """State of the run, `refused` (not launched) or `stopped early` (by the search)."""
    exit_code: int | None = None
    reason: str = ""


@dataclass(slots=True)
class Sweep:
    """A sweep's folder, open for appending."""

    root: Path
    about: About
    points: list[Point] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    """Trials in the order of their start; if a point was rerun, the last one counts."""
    _log: TextIO | None = None

    def add(self, point: Point) -> None:
        """Freeze a point; DtkError if the folder cannot be written."""
        with writing(self.root):
            write_json(self.root / "points" / f"{point.index:05d}.json", point)
        self.points.append(point)

    def begin(self, point: int, repeat: int) -> Trial:
        """Record the start of a run of a point."""
        trial = Trial(len(self.trials), point, repeat)
        self.trials.append(trial)
        self._append("began", trial)
        return trial

    def opened(self, trial: Trial, run: Path) -> None:
        """Record the run folder of a trial."""
        trial.run = run
        self._append("opened", trial)

    def end(self, trial: Trial, state: str, exit_code: int, reason: str) -> None:
        """Record the end of a trial."""
        trial.state, trial.exit_code, trial.reason = state, exit_code, reason
        self._append("ended", trial)

    def last(self, point: int, repeat: int) -> Trial | None:
        """Return the newest run of a point in one repeat, or None."""
        return next((t for t in reversed(self.trials) if (t.point, t.repeat) == (point, repeat)), None)

    def close(self) -> None:
        """Release the lock, so that another process can continue the sweep."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def lock(self) -> None:
        """Lock the sweep; DtkError if another process holds it, or the folder cannot be written."""
        try:
            path = self.root / "runs.jsonl"
            before = path.read_bytes() if path.exists() else b""
            self._log = path.open("a", encoding="utf-8")
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if before and not before.endswith(b"\n"):  # Truncated by a kill.
                self._log.write("\n")
        except BlockingIOError as error:
            self.close()
            what = f"the sweep {self.about.id} is still running"
            raise DtkError(what, fix="wait for it, or stop it first") from error
        except OSError as error:
            if self._log is None:  # Otherwise the file system has no locks, and only this check is lost.
                raise unwritable(self.root, error) from error

    def _append(self, event: str, trial: Trial) -> None:
        """Write a trial as it is now."""
        assert self._log is not None
        run, runs = trial.run, self.root.parent.parent
        if run is not None and run.is_relative_to(runs):  # So that both can be moved together.
            run = run.relative_to(runs)
        line = {"event": event, **asdict(trial), "run": run and str(run), "time": now()}
        with writing(self.root):
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()


def create(
    runs_folder: Path, method: str, name: str, source: dict[str, Any], repeats: int, points: Sequence[Point] = ()
) -> Sweep:
    """Make the folder of a new sweep and lock it; DtkError if the folder cannot be made."""
    identity = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{secrets.token_hex(2)}"
    root = runs_folder / FOLDER / identity
    about = About(identity, method, source, repeats, now())
    with writing(runs_folder):
        root.mkdir(parents=True)
        write_json(root / "sweep.json", about)
    sweep = Sweep(root, about)
    sweep.lock()
    for point in points:
        sweep.add(point)
    return sweep


def find(runs_folder: Path, method: str, source: dict[str, Any], repeats: int) -> Sweep:
    """Find and lock the newest sweep of the same command, with its points and runs; DtkError if there is none, it is
    damaged or of a newer dtk, or it is still running.
    """
    command = masked(json.loads(json.dumps([method, source, repeats])))
    folders = sorted((runs_folder / FOLDER).glob("*/sweep.json"), reverse=True)
    newer: DtkError | None = None
    for path in folders:
        try:
            about = _about(path)
        except (OSError, ValueError):  # Damaged; other sweeps may still match.
            continue
        except DtkError as error:
            newer = newer or error
            continue
        if [about.method, about.source, about.repeats] == command:
            print_line(f"continuing the sweep {about.id} with the points as they were frozen")
            sweep = _read(path.parent, about)
            sweep.lock()
            return sweep
    if newer is not None:
        raise newer
    others = "it has sweeps of other commands only" if folders else "there are no sweeps"
    fix = "type the same command as before with --resume, or start it without"
    raise DtkError(f"no sweep of this command to continue in {typed(runs_folder / FOLDER)}", others, fix)


def _about(path: Path) -> About:
    about = msgspec.convert(read_json(path, _LARGEST_BYTES), About)
    if about.schema_version > SCHEMA_VERSION:
        raise DtkError(f"the sweep {about.id} was written by a newer dtk", f"schema {about.schema_version}")
    return about


def opened(name: str, runs_folder: Path) -> Sweep | None:
    """Return a sweep by its id or its folder; None if there is none, DtkError if it is damaged or of a newer dtk."""
    paths = [Path(name) / "sweep.json", runs_folder / FOLDER / name / "sweep.json"]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    with refused(f"{path} is damaged", "", ValueError):
        return _read(path.parent, _about(path))


def _read(root: Path, about: About) -> Sweep:
    """Read the points and runs.jsonl: the last line of each trial counts, and one that a kill truncated is ignored."""
    sweep, log = Sweep(root, about), root / "runs.jsonl"
    with refused(f"the sweep {sweep.about.id} is damaged", "start a new sweep", ValueError):
        for path in sorted((sweep.root / "points").glob("*.json")):
            sweep.points.append(msgspec.convert(read_json(path, _LARGEST_BYTES), Point))
        lines = log.read_bytes().split(b"\n") if log.exists() else []
    trials: dict[int, Trial] = {}
    for line in objects(lines):
        with suppress(ValueError):
            trial = msgspec.convert(line, Trial, dec_hook=lambda _, run: root.parent.parent / run)
            trials[trial.number] = trial
    sweep.trials = list(trials.values())
    for trial in sweep.trials:
        if trial.exit_code is None:  # The sweep was killed meanwhile; the run's own status has the result.
            trial.state = "lost"
            with suppress(OSError, ValueError):
                trial.state = trial.state if trial.run is None else str(read_status(RunPaths(trial.run).status).state)
    return sweep
