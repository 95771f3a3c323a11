"""The environment of a rank that torchrun started, and a small job."""

import pytest

SMALL = ["model=gpt2_tiny", "model.layers=1", "model.width=16", "model.heads=2", "data=synthetic", "data.samples=64"]
SMALL += ["data.sequence_length=8", "strategy=ddp", "launcher.device=cpu", "train.steps=2", "checkpoint=off"]


def as_rank(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """Make this process look like the first of some ranks on one node."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", str(ranks)), ("LOCAL_WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
