"""The callbacks for transformers and Lightning, driven as the libraries drive them, in one process."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diagnostics.contract.artifacts import RunPaths, read_status
from dtk.parallel.regions import current, observe
from dtk.record.integrations import hf_trainer_callback, lightning_callback


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("RANK", "WORLD_SIZE", "DTK_WATCH_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    yield
    observe(())


def run_in(folder: Path) -> RunPaths:
    (run,) = folder.iterdir()
    return RunPaths(run)


def inside() -> str | None:
    region = current()
    return None if region is None else region.name


def test_a_trainer_of_transformers_is_a_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    callback, seen = hf_trainer_callback(folder=tmp_path), []
    arguments, state = SimpleNamespace(to_sanitized_dict=lambda: {"lr": 0.1}), SimpleNamespace(global_step=4)
    callback.on_train_begin(arguments, state, None)
    for step in (4, 5):
        state.global_step = step
        callback.on_step_begin(arguments, state, None)
        seen.append(inside())
        callback.on_pre_optimizer_step(arguments, state, None)
        seen.append(inside())
        callback.on_step_end(arguments, state, None)
        seen.append(inside())
        callback.on_log(arguments, state, None, logs={"loss": 0.5, "epoch": 1.0, "step": step})
    callback.on_train_end(arguments, state, None)
    assert seen == ["forward_backward", "optimizer", None] * 2
    paths = run_in(tmp_path)
    logged = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    assert [(record["step"], record["loss"]) for record in logged] == [(5, 0.5), (6, 0.5)], "a resumed run counts on"
    assert "epoch" not in logged[0]
    assert read_status(paths.status).state == "finished"


def test_a_fit_of_lightning_is_a_run(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    callback, seen = lightning_callback(folder=tmp_path), []
    metrics = {"train": torch.tensor(2.0)}
    trainer = SimpleNamespace(global_step=0, log_every_n_steps=2, callback_metrics=metrics, sanity_checking=False)
    module = SimpleNamespace(hparams={"width": 8})
    callback.on_fit_start(trainer, module)
    for step in range(2):
        callback.on_train_batch_start(trainer, module, None, step)
        seen.append(inside())
        callback.on_before_backward(trainer, module, None)
        seen.append(inside())
        callback.on_before_optimizer_step(trainer, module, None)
        seen.append(inside())
        trainer.global_step = step + 1
        callback.on_train_batch_end(trainer, module, {"loss": torch.tensor(0.25)}, None, step)
        seen.append(inside())
    callback.on_validation_start(trainer, module)
    seen.append(inside())
    callback.on_validation_end(trainer, module)
    callback.on_fit_end(trainer, module)
    assert seen == ["forward", "backward", "optimizer", None] * 2 + ["evaluation"]
    paths = run_in(tmp_path)
    (record,) = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    assert (record["step"], record["loss"], record["train"]) == (2, 0.25, 2.0), "every second step is logged"
    assert read_status(paths.status).state == "finished"


def test_pytorch_lightning_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = pytest.importorskip("pytorch_lightning")
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, None)  # As if it were not installed.
    assert isinstance(lightning_callback(), alone.Callback)


def test_a_fit_that_raises_is_a_failed_run(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    callback = lightning_callback(folder=tmp_path)
    trainer, module = (
        SimpleNamespace(global_step=0, log_every_n_steps=1, callback_metrics={}),
        SimpleNamespace(hparams={}),
    )
    callback.on_fit_start(trainer, module)
    callback.on_train_batch_start(trainer, module, None, 0)
    callback.on_exception(trainer, module, ValueError("bad batch"))
    status = read_status(run_in(tmp_path).status)
    assert status.state == "failed" and status.failure is not None and "bad batch" in status.failure.reason
    callback.on_fit_end(trainer, module)  # Lightning calls it on its way out.
