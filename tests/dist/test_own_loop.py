"""`dtk.record.attach` in other loops: plain torch, Accelerate, the Trainers of transformers and Lightning."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths, read_heartbeat, read_status
from tests.dist.ranks import ROOT, free_port
from tests.warm_python import run_modules

PLAIN = """
import sys, torch, torch.distributed as dist, dtk.record
from torch import nn

def train(mode):
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    config = {"lr": 0.1, "api_key": "s3cret", "dtype": torch.float32}
    with dtk.record.attach(name="mine", config=config, level="full", stall_timeout_s=5) as run:
        for number, batch in enumerate(run.steps(torch.randn(5, 4, 8))):
            with run.region("forward"):
                loss = model(batch).square().mean()
            with run.region("backward"):
                if mode == "raise" and number == 3 and dist.get_rank() == 1:
                    raise ValueError("bad batch")
                loss.backward()
            if mode == "hang" and number == 3 and dist.get_rank() == 0:
                dist.barrier()
            optimizer.step()
            run.log(loss=loss, tokens=(number + 1) * 64)
    dist.destroy_process_group()

train(sys.argv[1])
"""
ACCELERATE = """
import torch, dtk.record
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(16, 8)), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
with dtk.record.attach(name="accelerate") as run:
    for (batch,) in run.steps(loader):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=accelerator.gather(loss.detach()).mean())
"""
TRANSFORMERS = """
import torch, dtk.record
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                     num_attention_heads=2, num_key_value_heads=2))
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(16)]
arguments = TrainingArguments("out", max_steps=3, per_device_train_batch_size=2, logging_steps=1, report_to=[],
                              save_strategy="no", use_cpu=True, gradient_accumulation_steps=2, disable_tqdm=True,
                              ddp_backend="gloo")
Trainer(model, arguments, train_dataset=rows, callbacks=[dtk.record.hf_trainer_callback(name="hf")]).train()
"""
LIGHTNING = """
import torch, dtk.record, lightning
from torch import nn
from torch.utils.data import DataLoader

class Module(lightning.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(8, 1)
    def training_step(self, batch, number):
        if self.hparams.lr == 0 and number == 2 and self.global_rank == 1:
            raise ValueError("bad batch")
        loss = self.layer(batch).square().mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss
    def validation_step(self, batch, number):
        self.log("val_loss", self.layer(batch).square().mean(), sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr)

def fit(name, lr):
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                                log_every_n_steps=1, enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False, accumulate_grad_batches=2,
                                callbacks=[dtk.record.lightning_callback(name=name)])
    rows = DataLoader(torch.randn(16, 8), batch_size=2)
    trainer.fit(Module(lr), rows, rows)

fit("good", 0.1)
fit("bad", 0)
"""


def on_two_ranks(text: str, folder: Path, *arguments: str) -> list[subprocess.CompletedProcess]:
    (folder / "loop_of_mine.py").write_text(text)
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    # As under torchrun, by which Lightning knows that its ranks are there.
    shared |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "0"}
    shared |= {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    return run_modules([(["loop_of_mine", *arguments], rank) for rank in ranks], folder, 150)


def test_the_example_of_the_page_runs(tmp_path):
    page = (ROOT / "docs" / "own_loop.md").read_text()
    ended = on_two_ranks(page.split("```python\n")[1].split("```")[0], tmp_path)
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    assert len(recorded(tmp_path)[1]) == 5


def recorded(folder: Path, name: str = "") -> tuple[RunPaths, list[dict]]:
    """The one run of this name below a folder, and its metrics."""
    (run,) = (run for run in (folder / "runs").iterdir() if name in run.name)
    paths = RunPaths(run)
    return paths, [json.loads(line) for line in paths.metrics.read_text().splitlines()]


def test_a_plain_loop_leaves_a_run_folder(tmp_path):
    ended = on_two_ranks(PLAIN, tmp_path, "ok")
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    paths, metrics = recorded(tmp_path)
    assert paths.root.name.split("-")[2:4] == ["mine", "w2"]
    assert read_status(paths.status).state == "finished"
    assert [row["step"] for row in metrics] == [1, 2, 3, 4, 5]
    assert metrics[-1]["tokens"] == 320 and metrics[-1]["tokens_per_s"] > 0
    assert json.loads(paths.summary.read_text())["figures"]["steps_measured"] == 3
    assert yaml.safe_load(paths.config.read_text()) == {"lr": 0.1, "api_key": "***", "dtype": "torch.float32"}
    for rank in range(2):
        assert paths.ring(rank).stat().st_size > 0 and paths.black_box(rank).is_file()
        assert read_heartbeat(paths.heartbeat(rank)).step == 6  # The sixth is where the data ended.
        spans = {
            row["name"] for line in paths.events(rank).read_text().splitlines() if "name" in (row := json.loads(line))
        }
        assert {"data", "forward", "backward"} <= spans


def test_a_rank_that_raises_is_named_in_the_status_and_by_diagnose(tmp_path):
    ended = on_two_ranks(PLAIN, tmp_path, "raise")
    assert all(rank.returncode for rank in ended)
    paths, _ = recorded(tmp_path)
    status = read_status(paths.status)
    assert (status.state, status.failure.rank, status.failure.region) == ("failed", 1, "backward")
    assert "ValueError: bad batch (loop_of_mine.py:" in status.failure.reason
    assert json.loads(paths.error(0, 1).read_text())["type"] == "ValueError"
    from diagnostics.diagnose import diagnose

    (cause,) = diagnose(paths.root).root_causes
    assert (cause.cause, cause.ranks) == ("hang.rank_raised", (1,))


def test_a_job_that_the_watch_ends_says_so_and_blames_nobody_for_waiting_in_backward(tmp_path):
    ended = on_two_ranks(PLAIN, tmp_path, "hang")
    paths, _ = recorded(tmp_path)
    status = read_status(paths.status)
    # The all_reduce of DDP's reducer comes from C++, which no wrapper sees.
    assert "rank 1 waits in all_reduce [72] float32 at" in status.reason and "rank 0 waits in barrier" in status.reason
    assert status.state == "hung" and status.failure.rank != 1
    said = [line for rank in ended for line in rank.stderr.splitlines() if "dtk: the live" in line or "next: " in line]
    assert said[0] == f"dtk: the live watch ends this job: {status.reason}"
    assert " diagnose " in said[1] and said[1].endswith(paths.root.name) and len(said) == 2
    from diagnostics.diagnose import diagnose

    (cause,) = diagnose(paths.root).root_causes
    assert (cause.cause, cause.ranks) == ("hang.conditional_collective", (0,))


def test_a_loop_of_accelerate(tmp_path):
    pytest.importorskip("accelerate")
    ended = on_two_ranks(ACCELERATE, tmp_path)
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    paths, metrics = recorded(tmp_path)
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    assert read_status(paths.status).state == "finished"
    assert paths.ring(1).is_file()


def test_the_trainer_of_transformers(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    ended = on_two_ranks(TRANSFORMERS, tmp_path)
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    paths, metrics = recorded(tmp_path)
    assert [row["step"] for row in metrics if "loss" in row] == [1, 2, 3]
    assert all(row["loss"] > 0 for row in metrics if "loss" in row)
    assert (read_status(paths.status).state, read_status(paths.status).step) == ("finished", 3)
    assert yaml.safe_load(paths.config.read_text())["max_steps"] == 3
    assert [read_heartbeat(paths.heartbeat(rank)).step for rank in range(2)] == [3, 3]
    assert "all_reduce" in paths.black_box(1).read_text(), "the gradients' reduction, seen on the other rank too"


def test_the_trainer_of_lightning(tmp_path):
    pytest.importorskip("lightning")
    ended = on_two_ranks(LIGHTNING, tmp_path)
    assert all(rank.returncode for rank in ended), "the second fit fails on rank 1"
    paths, metrics = recorded(tmp_path, "good")
    # Each figure in the step in which it was measured, the last validation too, and none of the check before training.
    assert [(row["step"], "loss" in row, "val_loss" in row, "train_loss_epoch" in row) for row in metrics] == [
        (1, True, False, False),
        (2, True, False, False),
        (2, False, True, False),
        (2, False, False, True),
        (3, True, False, False),
        (4, True, False, False),
        (4, False, True, False),
        (4, False, False, True),
    ]
    assert metrics[6]["val_loss"] < metrics[2]["val_loss"]
    assert (read_status(paths.status).state, read_status(paths.status).step) == ("finished", 4)
    assert yaml.safe_load(paths.config.read_text()) == {"lr": 0.1}
    failed = read_status(recorded(tmp_path, "bad")[0].status)
    assert (failed.state, failed.failure.rank, failed.failure.step) == ("failed", 1, 2)
    assert "ValueError: bad batch" in failed.failure.reason
