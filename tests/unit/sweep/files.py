"""Sweep files for the tests, small and valid unless said otherwise."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtk.commands.main import main
from tests.cli.command import TINY

COMMAND = ["${env}", "${interpreter}", "-m", "dtk.run", *TINY, "tracker=wandb", "${args_no_hyphens}"]
GRID: dict[str, Any] = {
    "method": "grid",
    "command": COMMAND,
    "parameters": {"strategy": {"values": ["ddp", "fsdp"]}, "train.steps": {"value": 3}},
}
BAYES: dict[str, Any] = {
    "method": "bayes",
    "command": COMMAND,
    "run_cap": 4,
    "metric": {"name": "loss", "goal": "minimize"},
    "parameters": {
        "optimizer.lr": {"distribution": "log_uniform_values", "min": 1.0e-4, "max": 1.0e-1},
        "train.global_batch_size": {"values": [8, 16]},
    },
}
RANDOM: dict[str, Any] = {**BAYES, "method": "random"}


def write(folder: Path, content: Any, name: str = "sweep.yaml") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


needs_sweeps = pytest.mark.skipif(find_spec("sweeps") is None, reason="the extra sweeps is not installed")


def refused(content: Any, tmp_path: Any, monkeypatch: Any, capsys: Any, *arguments: str) -> str:
    """The line that is printed; checks that it is one, and that nothing else is left behind."""
    path = write(tmp_path, content)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", str(path), *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("dtk: ") and error.count("\n") == 1, error
    assert list(tmp_path.iterdir()) == [path]
    return error
