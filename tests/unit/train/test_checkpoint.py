"""Checkpoints of one rank: whole or absent, the newest kept, and one line for those that do not fit."""

import json
import threading
import time
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from diagnostics.contract.artifacts import CHECKPOINT_INFO, RunPaths, complete_checkpoints
from dtk.config.schema import CheckpointConfig
from dtk.errors import DtkError
from dtk.parallel.context import Context
from dtk.record.recorder import Recorder
from dtk.strategies.single import Single, SingleConfig
from dtk.train import checkpoint
from dtk.train.checkpoint import Checkpoints, LoopState
from tests.unit.train.conftest import config


def stepped(width: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(width)
    model = nn.Sequential(nn.Linear(width, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def make(alone: Context, tmp_path: Path) -> Any:
    def build(**settings: Any) -> Checkpoints:
        paths = RunPaths(tmp_path)
        recorder = Recorder(config(), paths, 0, 0, 0, 1, 0, alone.device)
        strategy = Single(SingleConfig(), alone, config().precision)
        return Checkpoints(CheckpointConfig(**settings), paths, alone, recorder, {"model": "probe"}, strategy)

    return build


def test_weights_buffers_and_states_come_back(make: Any, tmp_path: Path) -> None:
    checkpoints, (model, optimizer) = make(asynchronous=False), stepped()
    checkpoints.save(model, optimizer, LoopState(5, 64.0, 3), {"note": "more"})
    folder = RunPaths(tmp_path).checkpoint(5)
    about = json.loads((folder / CHECKPOINT_INFO).read_text())
    assert (about["step"], about["model"], about["note"]) == (5, "probe", "more")
    torch.manual_seed(99)
    other = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    fresh = torch.optim.AdamW(other.parameters(), lr=0.1)
    assert checkpoints.load(folder, other, fresh) == LoopState(5, 64.0, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert optimizer.state[mine].keys() == fresh.state[theirs].keys()
        assert all(torch.equal(v, fresh.state[theirs][k]) for k, v in optimizer.state[mine].items())


def test_a_write_of_many_minutes_is_work_while_its_files_grow(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, seen = make(), []
    monkeypatch.setattr(checkpoint, "LOOK_S", 0.01)
    monkeypatch.setattr(checkpoint, "region", lambda name: nullcontext(seen.append(name)))
    checkpoints.partial, done, stood = tmp_path, Future[None](), threading.Event()

    def write() -> None:
        for size in range(1, 6):
            (tmp_path / "part").write_bytes(bytes(size))
            before, ends_s = len(seen), time.monotonic() + 10
            while len(seen) == before and time.monotonic() < ends_s:
                time.sleep(0.001)
        beats = len(seen)
        time.sleep(0.2)  # Nothing grows: nothing is told.
        if len(seen) == beats:
            stood.set()
        done.set_result(None)

    checkpoints.pending = done
    threading.Thread(target=write).start()
    checkpoints.wait()
    assert len(seen) >= 5 and stood.is_set()


def test_only_the_newest_are_kept_and_half_written_ones_are_removed(make: Any, tmp_path: Path) -> None:
    checkpoints, (model, optimizer) = make(asynchronous=True, keep=2), stepped()
    for step in (1, 2, 2, 3):
        checkpoints.save(model, optimizer, LoopState(step))
    checkpoints.wait()
    assert [path.name for path in complete_checkpoints(RunPaths(tmp_path))] == ["step_00000002", "step_00000003"]
    remaining = RunPaths(tmp_path).checkpoints / ".partial_step_00000004"
    remaining.mkdir()
    checkpoints.clean()
    assert not remaining.exists() and checkpoints.shortfall() == ""


def test_a_write_that_fails_is_reported_and_costs_the_older_ones_nothing(make: Any, tmp_path: Path) -> None:
    checkpoints, (model, optimizer) = make(asynchronous=False), stepped()
    checkpoints.save(model, optimizer, LoopState(1))
    blocked = RunPaths(tmp_path).checkpoints / ".partial_step_00000002"
    blocked.write_text("a file where the folder should be")
    checkpoints.save(model, optimizer, LoopState(2))
    assert "the newest one is step_00000001" in checkpoints.shortfall()
    blocked.unlink(missing_ok=True)
    checkpoints.save(model, optimizer, LoopState(3))
    assert checkpoints.shortfall() == "", "the last one succeeded"


def test_another_model_is_refused(make: Any, tmp_path: Path) -> None:
    checkpoints, (model, optimizer) = make(asynchronous=False), stepped()
    checkpoints.save(model, optimizer, LoopState(1))
    folder = RunPaths(tmp_path).checkpoint(1)
    with pytest.raises(DtkError, match=r"its model.0.weight is \[2, 3\], not \[2, 5\]"):
        checkpoints.load(folder, *stepped(5))
    larger = nn.Sequential(*model, nn.Linear(2, 2))
    with pytest.raises(DtkError, match=r"it has no model.2.bias"):
        checkpoints.load(folder, larger, torch.optim.AdamW(larger.parameters()))


@pytest.mark.parametrize("damage", ["no index", "cut off", "another pickle"])
def test_a_damaged_checkpoint_is_one_line(make: Any, tmp_path: Path, damage: str) -> None:
    checkpoints, (model, optimizer) = make(asynchronous=False), stepped()
    checkpoints.save(model, optimizer, LoopState(1))
    folder = RunPaths(tmp_path).checkpoint(1)
    if damage == "no index":
        (folder / ".metadata").unlink()
    elif damage == "cut off":
        for data in folder.glob("*.distcp"):
            data.write_bytes(data.read_bytes()[:-300])
    else:
        (folder / ".metadata").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DtkError, match="damaged") as caught:
        checkpoints.load(folder, model, optimizer)
    assert "\n" not in str(caught.value)
