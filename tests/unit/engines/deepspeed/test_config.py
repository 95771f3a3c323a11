"""A user's ds_config.json and dtk's keys become one configuration, or one line that names both values."""

import dataclasses
import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from dtk.config.checks import check
from dtk.config.compose import compose
from dtk.config.schema import Config
from dtk.errors import DtkError
from dtk.launch.prepare import check_parts

BASE = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=64", "train.micro_batch_size=2"]


@pytest.fixture(scope="module")
def config() -> Config:
    return compose([*BASE, "strategy=deepspeed_zero2"]).config


def job(config: Config, tmp_path: Path, content: Any = None, **keys: Any) -> Config:
    if content is not None:
        path = tmp_path / "ds_config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        keys["config"] = str(path)
    return dataclasses.replace(config, strategy=dataclasses.replace(config.strategy, **keys))


def refusal(config: Config, world_size: int = 2) -> str:
    with pytest.raises(DtkError) as error:
        check(config, world_size, "cpu")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_dtk_sets_what_it_has_keys_for(config: Config, tmp_path: Path) -> None:
    result, notes = config.strategy.settings(config, 2)
    assert notes == []
    sizes = [
        result[key] for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    ]
    assert sizes == [8, 2, 2] and result["gradient_clipping"] == 1.0
    states = {"stage": 2, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}}
    assert result["zero_optimization"] == states
    assert result["zero_force_ds_cpu_optimizer"] is False and "optimizer" not in result


def test_offload_is_that_of_deepspeed(config: Config, tmp_path: Path) -> None:
    nvme = {"offload": "optimizer", "offload_to": "nvme", "offload_folder": "/scratch"}
    assert "files for stage 3 only" in refusal(job(config, tmp_path, **nvme))
    moved = job(compose([*BASE, "strategy=deepspeed_zero3"]).config, tmp_path, **nvme)
    states = moved.strategy.settings(moved, 2)[0]["zero_optimization"]
    assert states["offload_optimizer"] == {"device": "nvme", "nvme_path": "/scratch"}
    assert states["offload_param"] == {"device": "none"}
    assert not moved.strategy.pages("cuda")


def test_a_file_that_agrees_is_taken(config: Config, tmp_path: Path) -> None:
    content = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000, "overlap_comm": "auto"},
        "bf16": {"enabled": False},
    }
    taken = job(config, tmp_path, content)
    check(taken, 2, "cpu")
    result, notes = taken.strategy.settings(taken, 2)
    assert (
        result["zero_optimization"]["reduce_bucket_size"] == 1000 and "overlap_comm" not in result["zero_optimization"]
    )
    assert "scheduler is replaced by the section schedule" in notes
    assert "train_micro_batch_size_per_gpu=auto becomes 2" in notes


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"train_batch_size": 16}, ("train_batch_size=16", "train.global_batch_size=8")),
        ({"zero_optimization": {"stage": 3}}, ("zero_optimization.stage=3", "strategy=deepspeed_zero2", "makes it 2")),
        ({"gradient_accumulation_steps": 4}, ("gradient_accumulation_steps=4", "on 2 ranks", "makes it 2")),
        ({"gradient_clipping": 0.5}, ("gradient_clipping=0.5", "train.clip_norm=1.0")),
        ({"bf16": {"enabled": True}}, ("bf16.enabled=true", "precision=fp32")),
        ({"optimizer": {"type": "SGD"}}, ('optimizer.type="SGD"', "optimizer=adamw")),
        ({"optimizer": {"params": {"lr": 1e-2}}}, ("optimizer.params.lr=0.01", "optimizer.lr=")),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, ('device="cpu"', "strategy.offload=none")),
        ({"zero_optimisation": {"stage": 2}}, ("no key zero_optimisation.stage",)),
        ({"zero_optimization": {"stage": 2, "bucket": 3}}, ("no key zero_optimization.bucket",)),
        ({"zero_optimization": 2}, ("zero_optimization=2", "is not a section", '"zero_optimization": {')),
        ({"zero_optimization": [1]}, ("zero_optimization=[1]", "is not a section")),
        *(({"steps_per_print": wrong}, ("steps_per_print=", "default is 10")) for wrong in (-inf, nan, "often", 2.5)),
        ({"steps_per_print": {"every": 2}}, ("no key steps_per_print.every",)),
        ({"bogus": {}}, ("no section bogus",)),
        ({"steps_per_print": {}}, ("no section steps_per_print",)),
        ({"zero_optimization": {"bogus": {}}}, ("no section zero_optimization.bogus",)),
        ({"zero_optimization": {"offload_optimizer": "cpu"}}, ('offload_optimizer="cpu"', "is not a section")),
        ({"train_batch_size": {}}, ("train_batch_size={}", "train.global_batch_size=8")),
        *(
            ({"zero_optimization": {"reduce_bucket_size": wrong}}, ("reduce_bucket_size=", "not a number of elements"))
            for wrong in ("many", None, -1, True, [1], 1e400)
        ),
        ({"zero_optimization": {"overlap_comm": "yes please"}}, ('overlap_comm="yes please"', "default is false")),
        ({"wall_clock_breakdown": 1}, ("wall_clock_breakdown=1", "default is false")),
        ({"zero_optimization": {"offload_param": {"buffer_count": 4.5}}}, ("buffer_count=4.5", "default is 5")),
        ({"aio": {"blok_size": 1}}, ("no key aio.blok_size",)),
        ({"aio": {"block_size": True}}, ("aio.block_size=true", "default is 1048576")),
        ({"comms_logger": {"prof_ops": "all"}}, ('prof_ops="all"', "default is []")),
        (
            {"zero_optimization": {"zero_quantized_weights": True}},
            ("zero_quantized_weights=true", "kernels need CUDA", "strategy=fsdp strategy.quantized_weights=true"),
        ),
        ({"zero_optimization": {"zero_hpz_partition_size": 2}}, ("zero_hpz_partition_size=2", "reshard_after_forward")),
        ("[1]", ("no JSON object",)),
        ("{", ("cannot be read",)),
    ],
)
def test_contradictions_and_unknown_keys_are_one_line(
    config: Config, tmp_path: Path, content: Any, parts: tuple[str, ...]
) -> None:
    said = refusal(job(config, tmp_path, content))
    assert all(part in said for part in parts), said


def test_empty_sections_that_are_known_say_nothing(config: Config, tmp_path: Path) -> None:
    empty = {"zero_optimization": {"offload_param": {}}, "bf16": {}, "aio": {}, "optimizer": {"params": {}}}
    taken = job(config, tmp_path, empty)
    assert taken.strategy.settings(taken, 2) == config.strategy.settings(config, 2)


def test_the_usual_file_of_other_trainers_is_taken(tmp_path: Path) -> None:
    """That of the documentation of transformers, with "auto" and a section for fp16 that is not enabled."""
    stage3 = compose([*BASE, "strategy=deepspeed_zero3"]).config
    scaling = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2}
    live = {"stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9, "sub_group_size": 1e9}
    content = {
        "fp16": {"enabled": "auto", **scaling, "min_loss_scale": 1},
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "none", "pin_memory": True},
            "offload_param": {"device": "none", "pin_memory": True},
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
            **live,
        },
        "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": False},
        "steps_per_print": 2000,
        **dict.fromkeys(("gradient_accumulation_steps", "gradient_clipping", "train_batch_size"), "auto"),
        "wall_clock_breakdown": False,
    }
    taken = job(stage3, tmp_path, content)
    check(taken, 2, "cpu")
    result, _ = taken.strategy.settings(taken, 2)
    assert result["zero_optimization"]["overlap_comm"] is True and result["fp16"] == {
        "enabled": False,
        **scaling,
        "min_loss_scale": 1,
    }


@pytest.mark.parametrize("never", [inf, "inf", None])
def test_a_report_that_is_never_printed(config: Config, tmp_path: Path, never: Any) -> None:
    taken = job(config, tmp_path, {"steps_per_print": never})
    assert taken.strategy.settings(taken, 2)[0]["steps_per_print"] == inf


def test_a_file_that_is_not_there_is_one_line(config: Config, tmp_path: Path) -> None:
    absent = dataclasses.replace(config.strategy, config=str(tmp_path / "none.json"))
    assert "cannot be read" in refusal(dataclasses.replace(config, strategy=absent))


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["parallel.tp=2"], "strategy=deepspeed_zero3 is incompatible with parallel.tp=2"),
        (["parallel.pp=2"], "parallel.pp=2"),
        (["precision=fp16"], "precision=fp16"),
        (["train.compile=true"], "train.compile=true"),
        (["preflight='on'"], "preflight=on"),
        (["optimizer.in_backward=true"], "optimizer.in_backward=true"),
        (["strategy=deepspeed_zero1", "strategy.offload=parameters"], "strategy.offload=parameters"),
        (["engine=accelerate"], "engine=accelerate is incompatible with strategy=deepspeed_zero3"),
        (
            ["engine=accelerate", "strategy=hsdp"],
            "wraps the model in DistributedDataParallel, or in FSDP2 over all ranks",
        ),
        (["engine=accelerate", "strategy=ddp", "parallel.tp=2"], "parallel.tp=2"),
        (["engine=accelerate", "strategy=ddp", "precision=fp16"], "precision=fp16"),
    ],
)
def test_what_a_library_has_not_is_refused(overrides: list[str], part: str) -> None:
    assert part in refusal(compose([*BASE, "strategy=deepspeed_zero3", *overrides]).config)


@pytest.mark.parametrize(
    ("overrides", "package"),
    [(["strategy=deepspeed_zero3"], "deepspeed"), (["strategy=ddp", "engine=accelerate"], "accelerate")],
)
def test_a_missing_package_says_what_to_install(
    overrides: list[str], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtk.extras.find_spec", lambda name: None)
    with pytest.raises(DtkError, match=rf"needs the package {package}.*dtk-train\[{package}\]"):
        check_parts(compose([*BASE, *overrides]).config, 2)
