"""Which runs are repeats of each other, and what distinguishes the variants in their names."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.evidence.limits import Limits
from dtk.compare.group import compares, flat, machine, variants
from dtk.compare.load import load
from dtk.compare.model import RunRecord
from tests.unit.compare.folders import FSDP, make_run


def runs(tmp_path: Path, *changes: dict[str, Any]) -> list[RunRecord]:
    return [load(make_run(tmp_path, f"r{n}", **change), Limits()) for n, change in enumerate(changes)]


def labels(tmp_path: Path, *changes: dict[str, Any]) -> list[str]:
    return [variant.label for variant in variants(runs(tmp_path, *changes))]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([{}, {}], ["ddp"]),
        ([{}, {"change": {"runs_folder": "/elsewhere", "launcher.master_port": 7}}], ["ddp"]),
        ([{}, {"change": FSDP}], ["ddp", "fsdp"]),
        ([{}, {"change": {"train.micro_batch_size": 2}}], ["ddp micro=4", "ddp micro=2"]),
        ([{}, {"world_size": 4}], ["ddp w2", "ddp w4"]),
        ([{}, {"change": {"precision": {"name": "bf16"}}}], ["ddp precision=fp32", "ddp precision=bf16"]),
        ([{}, {"change": {"strategy.bucket_cap_mb": 1}}], ["ddp bucket_cap_mb=25.0", "ddp bucket_cap_mb=1"]),
        ([{}, {"gpu": "H100"}], ["ddp CPU", "ddp H100"]),
        ([{}, {"change": {"seed": 5}}], ["ddp seed=1234", "ddp seed=5"]),
    ],
)
def test_a_variant_is_named_by_what_distinguishes_it(
    tmp_path: Path, changes: list[dict[str, Any]], names: list[str]
) -> None:
    assert labels(tmp_path, *changes) == names


def test_keys_of_a_strategy_do_not_tell_it_from_another_strategy(tmp_path: Path) -> None:
    """`bucket_cap_mb` exists under ddp only: `strategy` says all that there is."""
    assert labels(tmp_path, {}, {"change": {"strategy": {"name": "fsdp", "blocks_per_unit": 1}}}) == ["ddp", "fsdp"]


def test_only_another_engine_is_said(tmp_path: Path) -> None:
    own, other = {"change": {"engine": "native"}}, {"change": {"engine": "accelerate"}}
    library = {"change": {"engine": "native", "strategy": {"name": "deepspeed_zero3"}}}
    assert labels(tmp_path, own, other, library) == ["ddp", "ddp engine=accelerate", "deepspeed_zero3"]


def test_a_long_value_is_cut_and_equal_names_are_numbered(tmp_path: Path) -> None:
    long = "x" * 60
    names = labels(tmp_path, *({"change": {"strategy.bucket_cap_mb": f"{long}{n}"}} for n in range(2)))
    assert names == [f"ddp bucket_cap_mb={long[:40]}", f"ddp bucket_cap_mb={long[:40]} (2)"]


def test_repeats_are_in_the_order_of_their_start_and_only_good_ones_are_compared(tmp_path: Path) -> None:
    late, died, early = runs(
        tmp_path, {"minute": 9}, {"minute": 5, "state": "failed", "times_s": [0.1] * 6}, {"minute": 1}
    )
    (variant,) = variants([late, died, early])
    assert variant.runs == [late, died, early] and variant.compared == [early, late]
    assert variant.outcome == "failed" and variant.any is early


def test_a_run_whose_steps_are_all_warm_up_is_not_compared(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, {})
    assert compares(replace(run, warmup_steps=11)) and not compares(replace(run, warmup_steps=12))


def test_flat_keys_leave_out_what_changes_nothing() -> None:
    config = {
        "train": {"steps": 3, "evaluate_every": 7},
        "tracker": {"name": "wandb"},
        "launcher": {"device": "cpu", "nproc": 2},
        "model": {"sizes": [1, 2]},
    }
    assert flat(config) == {"train.steps": 3, "launcher.device": "cpu", "model.sizes": ("1", "2")}


def test_a_manifest_without_anything_is_a_machine_too(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, {})
    assert machine(run) == ("CPU", "1 nodes", "torch 2.13.0", "012345678")
    for hardware in ({}, {"gpus": 7}, []):
        empty = RunRecord(
            path=run.path, state="finished", reason="", started="", config={}, manifest={"hardware": hardware},
            parity={}, figures={}, traffic=(), windows=(), warmup_steps=2, world_size=1,
        )  # fmt: skip
        assert machine(empty) == ("None", "None nodes", "torch None", "")
