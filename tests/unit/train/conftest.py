"""One rank with a real process group, and a small configuration whose sections a test replaces."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from diagnostics.contract.artifacts import RunPaths
from dtk.config import schema
from dtk.config.schema import Config
from dtk.parallel.context import Context, join, leave
from dtk.parallel.stop import StopRequest
from dtk.record.recorder import Recorder
from dtk.strategies.single import SingleConfig
from dtk.train.assemble import assemble
from dtk.train.loop import Loop


def config(**changes: Any) -> Config:
    sections = {
        "model": schema.GPTConfig(name="probe", vocab_size=17, context_length=8, layers=2, heads=2, width=8),
        "data": schema.SyntheticData(sequence_length=8, vocab_size=17, samples=100),
        "strategy": SingleConfig(),
        "precision": schema.PrecisionConfig(),
        "optimizer": schema.AdamWConfig(lr=1e-2),
        "schedule": schema.ConstantSchedule(warmup_steps=0),
        "train": schema.TrainConfig(steps=4, global_batch_size=4, micro_batch_size=2, evaluate_every=-1, log_every=1),
        "checkpoint": schema.CheckpointConfig(every=0, at_end=False),
        "record": schema.RecordConfig(level="off"),
        "tracker": schema.NoTracker(),
        "launcher": schema.LauncherConfig(),
        "nccl": schema.NCCLConfig(),
        **changes,
    }
    return Config(**sections)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """This process as the only rank of a gloo group."""
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    yield join(HashStore(), "cpu", "gloo", 30.0)
    leave()


Build = Callable[..., Loop]


@pytest.fixture
def build(alone: Context, tmp_path: Path) -> Iterator[Build]:
    """Makes a loop, ready to run: build(config, checkpoint)."""
    recorders: list[Recorder] = []

    def make(settings: Config, checkpoint: Path | None = None, folder: Path = tmp_path) -> Loop:
        paths = RunPaths(folder)
        recorder = Recorder(settings, paths, 0, 0, 0, 1, 0, alone.device)
        recorder.start()
        recorders.append(recorder)
        return assemble(settings, alone, paths, recorder, StopRequest(), checkpoint)

    yield make
    for recorder in recorders:
        recorder.close()
