"""Sweep files for the tests, small and valid unless said otherwise."""

from pathlib import Path
from typing import Any

import yaml

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
