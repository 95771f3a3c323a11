"""Stands in for ranks, where the order of runs and what is recorded of them is tested."""

import json
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from dtk.errors import DtkError
from dtk.sweep.folder import create
from dtk.sweep.local import Runner


class Launches:
    """Instead of ranks: leaves a run folder with the state that was asked for, or raises."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[str] = []
        self.seeds: list[int] = []
        self.resumed: list[str] = []
        self.ends: dict[int, object] = {}
        """Number of the launch -> state, or what is raised; else `finished`."""
        self.losses: dict[int, float] = {}
        """Number of the launch -> the loss that it records."""

    def __call__(self, point: Any, placement: Any, opened: Any = None, dry_run: bool = False) -> int:
        number = len(self.seen)
        self.seen.append(point.composed.config.strategy.name)
        self.seeds.append(point.composed.config.seed)
        self.resumed += [str(point.paths.root)] if point.paths else []
        end = self.ends.get(number, "finished")
        if isinstance(end, DtkError):
            raise end
        paths = point.paths or RunPaths(self.folder / f"run-{number}")
        paths.root.mkdir(exist_ok=True)
        opened(paths)
        state = end if isinstance(end, str) else "running"
        paths.status.write_text(json.dumps({"schema_version": 1, "state": state, "reason": f"as {state}"}))
        if number in self.losses:
            figures = {"figures": {"loss": self.losses[number]}}
            paths.summary.write_text(json.dumps(figures))
        if isinstance(end, BaseException):
            raise end
        return {"finished": 0, "preempted": 130}.get(state, 1)


SOURCE = {"overrides": []}


def begin(tmp_path, points, repeats=1):
    sweep = create(tmp_path, "multirun", "multirun", SOURCE, repeats)
    for point in points:
        sweep.add(point)
    return sweep, Runner(sweep, None, len(points) * repeats)
