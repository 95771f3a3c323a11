"""DeepSpeed under dtk's configuration: trains as dtk's own strategies do, with checkpoints of the same format."""

import dataclasses
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dtk.config import schema
from tests.dist.engine_ranks import job
from tests.dist.ranks import run_ranks

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="the package deepspeed is not installed"),
    pytest.mark.timeout(600),
]
STAGES = ("deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3")
NEAR = 1e-5
"""Largest relative difference of losses in float32; 2e-7 was measured."""
FREED = {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
TUNED = {"zero_optimization": {"stage": "auto", "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 20_000}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, dict[str, Any]]:
    tuned = folder / "ds_config.json"
    tuned.write_text(json.dumps(TUNED))
    freed = folder / "freed.json"
    freed.write_text(json.dumps({"zero_optimization": FREED}))
    light = {"record": schema.RecordConfig(level="light")}
    exported = {"checkpoint": dataclasses.replace(job("fsdp").checkpoint, export=True)}
    sgd = {"optimizer": schema.SGDConfig(lr=0.05)}
    cases = {
        "fsdp": (job("fsdp", more=exported), None),
        "zero1": (job("deepspeed_zero1", micro_batch_size=2), None),
        "zero2": (job("deepspeed_zero2", micro_batch_size=4, offload="optimizer", more=light), None),
        "zero3": (job("deepspeed_zero3", more=exported), None),
        "zero3 tuned": (job("deepspeed_zero3", micro_batch_size=4, config=str(tuned), offload="parameters"), None),
        "zero3 freed": (job("deepspeed_zero3", config=str(freed)), None),
        "fsdp bf16": (job("fsdp", steps=6, precision="bf16"), None),
        "zero3 bf16": (job("deepspeed_zero3", steps=6, precision="bf16"), None),
        "fsdp bf16 sgd": (job("fsdp", steps=5, precision="bf16", more=sgd), None),
        "zero2 bf16 sgd": (job("deepspeed_zero2", steps=5, precision="bf16", more=sgd), None),
        "zero3 -> zero3": (job("deepspeed_zero3", steps=7), "zero3"),
        "zero3 -> fsdp": (job("fsdp", steps=7), "zero3"),
        "fsdp -> zero1": (job("deepspeed_zero1", steps=7), "fsdp"),
        "zero3 bf16 -> zero2": (job("deepspeed_zero2", steps=6, precision="bf16"), "zero3 bf16"),
    }
    return run_ranks("tests.dist.engine_ranks:train", 2, cases, str(folder), timeout_s=500)[0]


def apart(ours: dict[str, Any], theirs: dict[str, Any], figures: int = 2) -> float:
    """Largest relative difference of losses and, of two figures, gradient norms."""
    both = (sum((each[:figures] for each in run["figures"]), ()) for run in (ours, theirs))
    pairs = zip(*both, strict=True)
    return max(abs(a - b) / abs(a) for a, b in pairs)


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "zero3 tuned"])
def test_every_stage_trains_as_fsdp(runs: dict[str, dict[str, Any]], name: str) -> None:
    assert len(runs[name]["figures"]) == 7 and apart(runs["fsdp"], runs[name]) < NEAR
    assert runs[name]["validation"] == pytest.approx(runs["fsdp"]["validation"], rel=NEAR)


@pytest.mark.parametrize(("ours", "theirs"), [("fsdp bf16", "zero3 bf16"), ("fsdp bf16 sgd", "zero2 bf16 sgd")])
def test_bf16_is_as_near_as_its_rounding(runs: dict[str, dict[str, Any]], ours: str, theirs: str) -> None:
    assert apart(runs[ours], runs[theirs], figures=1) < 2e-3


def test_it_begins_with_the_same_weights_in_the_same_formats(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["zero1"]["began"] == runs["zero3 tuned"]["began"] == runs["fsdp"]["began"]
    assert runs["zero3 bf16"]["began"] == runs["fsdp bf16"]["began"], "master weights are float32 in both"


@pytest.mark.parametrize(
    "name", ["zero1", "zero2", "zero3", "zero3 tuned", "zero3 freed", "zero2 bf16 sgd", "zero3 bf16"]
)
def test_what_is_declared_is_sent(runs: dict[str, dict[str, Any]], name: str) -> None:
    run = runs[name]
    regions = dict(run["regions"])
    calls, size = regions["all_reduce", "dp"]
    regions["all_reduce", "dp"] = calls - 1, size - 4  # The loss of a logged step.
    assert regions.pop(("all_reduce", "control")) == (1, 24)
    assert run["declared"] == regions
    for op, of_wire in run["wire"].items():
        marked = [figures for (name, _), figures in run["regions"].items() if (name,) == op]
        assert of_wire == tuple(map(sum, zip(*marked))), "every call of the library has its region"


@pytest.mark.parametrize(
    ("name", "whole"),
    [("zero3 -> zero3", "zero3"), ("zero3 -> fsdp", "zero3"), ("fsdp -> zero1", "fsdp")],
)
def test_a_checkpoint_continues_under_any_strategy(runs: dict[str, dict[str, Any]], name: str, whole: str) -> None:
    rest = {"figures": runs[whole]["figures"][5:7]}
    assert apart(rest, runs[name]) < (1e-7 if name == "zero3 -> zero3" else NEAR)


def test_a_resume_keeps_the_master_weights_of_bf16(runs: dict[str, dict[str, Any]]) -> None:
    assert apart({"figures": runs["zero3 bf16"]["figures"][5:]}, runs["zero3 bf16 -> zero2"]) < NEAR


def test_the_export_is_that_of_fsdp(runs: dict[str, dict[str, Any]], folder: Path) -> None:
    ours, theirs = (load_file(folder / name / "export" / "model.safetensors") for name in ("fsdp", "zero3"))
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}
    assert all(ours[name].sub(theirs[name]).abs().max() < 1e-4 for name in ours)


EXTENSIONS = Path(os.environ.get("TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions")).expanduser()


@pytest.mark.skipif(
    not list(EXTENSIONS.rglob("async_io.so")), reason="DeepSpeed's extension async_io, minutes of g++, is not compiled"
)
@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
def test_states_in_files_train_and_resume_as_in_memory(offload: str, tmp_path: Path) -> None:
    keys = {"offload": offload, "offload_to": "nvme", "offload_folder": str(tmp_path)}
    cases = {
        "memory": (job("deepspeed_zero3"), None),
        "files": (job("deepspeed_zero3", **keys), None),
        "files -> files": (job("deepspeed_zero3", **keys), "files"),
    }
    runs = run_ranks("tests.dist.engine_ranks:train", 2, cases, str(tmp_path))[0]
    assert apart(runs["memory"], runs["files"]) < NEAR
    assert apart({"figures": runs["files"]["figures"][5:7]}, runs["files -> files"]) < NEAR
