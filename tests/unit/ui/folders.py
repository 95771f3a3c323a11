"""Run folders as dtk leaves them, small and without a training."""

import json
import time
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import RunPaths, Status, write_json

STEPS = 5


def make_run(folder: Path, name: str, state: str = "finished", **more: Any) -> Path:
    """A run with some metrics."""
    paths = RunPaths(folder / name)
    paths.root.mkdir(parents=True)
    write_json(paths.status, Status(state=state, step=STEPS, started="2026-01-01T00:00:00+00:00", **more))
    logged(paths.root, 1, STEPS)
    return paths.root


def logged(run: Path, first: int, last: int) -> None:
    """Records of the steps from `first` to `last`, as the run appends them."""
    with RunPaths(run).metrics.open("a") as file:
        for step in range(first, last + 1):
            record = {"step": step, "loss": 5 - step / 2, "tokens_per_s": 1000.0 + step, "time_s": time.time()}
            file.write(json.dumps(record) + "\n")


def beat(run: Path, rank: int, step: int | None, region: str | None, age_s: float = 0.0) -> None:
    """The heartbeat of a rank."""
    (run / "heartbeat").mkdir(exist_ok=True)
    value = {"step": step, "region": region, "time_s": time.time() - age_s, "pid": 1, "host": "node", "attempt": 0}
    (run / "heartbeat" / f"rank_{rank:05}.json").write_text(json.dumps({"beat": 1, **value, "beat_end": 1}))
