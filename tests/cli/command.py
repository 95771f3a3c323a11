"""Runs dtk's commands as a user types them, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.warm_python import Program

ROOT = Path(__file__).resolve().parents[2]
TINY = [
    "model=gpt2_tiny",
    "model.layers=2",
    "model.width=32",
    "model.heads=2",
    "data.max_bytes=300000",
    "data.sequence_length=32",
    "train.evaluate_samples=16",
]
FAULTY = [
    "model=custom",
    "model._target_=tests.cli.faulty.Faulty",
    "model.vocab_size=256",
    "model.context_length=64",
    "allow_targets=[tests.cli.faulty.*]",
    "data.max_bytes=300000",
    "data.sequence_length=32",
    "checkpoint=off",
]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **more}


def start(
    folder: Path, *overrides: str, launcher: tuple[str, ...] = (), **more: Any
) -> "subprocess.Popen[str] | Program":
    """Without a search path of its own it need not import everything once more."""
    command = [*launcher, "-m", "dtk.run", f"runs_folder={folder}", *overrides]
    if command[0] == "-m" and "PYTHONPATH" not in more:
        return Program(command[1:], environment(**more), ROOT)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *command], env=environment(**more), cwd=ROOT, **pipes)


def run(folder: Path, *overrides: str, timeout_s: float = 120, **more: Any) -> "subprocess.CompletedProcess[str]":
    process = start(folder, *overrides, **more)
    try:
        out, error = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.wait(), out, error)


def only_run(folder: Path) -> Path:
    runs = [path for path in folder.iterdir() if path.is_dir()]
    assert len(runs) == 1, runs
    return runs[0]


def status(run_folder: Path) -> dict[str, Any]:
    return json.loads((run_folder / "status.json").read_text())


def metrics(run_folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
