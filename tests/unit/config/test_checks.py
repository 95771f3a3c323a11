"""Rules between fields: each broken one is a line with the way out, and what it advises passes."""

import dataclasses
import re
from functools import cache
from typing import Any

import pytest

from dtk.config.batch import settle
from dtk.config.checks import check, check_ranks
from dtk.config.compose import compose
from dtk.config.limits import check_limits, limits
from dtk.config.schema import KINDS, Config
from dtk.errors import DtkError

BERT = ["model=bert_tiny", "data=classification"]


NVME = ["strategy.offload_to=nvme", "strategy.offload_folder=x"]


@pytest.mark.parametrize(
    ("overrides", "world_size", "expected"),
    [
        (
            ["train.global_batch_size=10", "train.micro_batch_size=4"],
            2,
            "train.global_batch_size=10 cannot be split into 2 ranks x train.micro_batch_size=4 - "
            "use train.global_batch_size=8 or 16, or train.micro_batch_size=1 or 5",
        ),
        (
            ["train.global_batch_size=9"],
            2,
            "train.global_batch_size=9 cannot be split over 2 ranks - use train.global_batch_size=8 or 10",
        ),
        (
            ["train.micro_batch_size=16"],
            2,
            "train.global_batch_size=8 is less than 2 ranks x train.micro_batch_size=16 - "
            "use train.global_batch_size=32, or train.micro_batch_size=1, 2 or 4",
        ),
        (
            ["data.sequence_length=2048"],
            2,
            "data.sequence_length=2048 is longer than the model's context: model.context_length=1024 - "
            "use data.sequence_length=1024 or a larger model.context_length",
        ),
        (
            ["model=gpt2_tiny", "model.layers=1", "strategy=ddp", "parallel.pp=2"],
            2,
            "parallel.pp=2 makes 2 stages of 1 block: a stage has at least one block - use parallel.pp=1",
        ),
        (
            ["model=gpt2_tiny", "strategy=pp", "parallel.stages_per_rank=4", "parallel.schedule=interleaved_1f1b"],
            2,
            "parallel.pp=2 x parallel.stages_per_rank=4 makes 8 stages of 4 blocks: a stage has at least one block - "
            "use parallel.stages_per_rank=2",
        ),
        (
            ["strategy=ddp", "parallel.pp=2", "parallel.microbatches=3"],
            2,
            "parallel.microbatches=3 does not divide the 8 samples of each data-parallel rank: "
            "train.global_batch_size=8 on 1 data-parallel rank - "
            "use parallel.microbatches=2, or train.global_batch_size=9",
        ),
        (
            ["strategy=ddp", "parallel.pp=2", "parallel.microbatches=4", "train.micro_batch_size=1"],
            2,
            "parallel.microbatches=4, but train.micro_batch_size=1 makes 8 - "
            "use train.micro_batch_size=2, or parallel.microbatches=null",
        ),
        (
            ["strategy=ddp", "parallel.pp=2", "parallel.schedule=interleaved_1f1b"],
            2,
            "parallel.schedule=interleaved_1f1b has 2 stages or more on each rank: parallel.stages_per_rank=1 - "
            "use parallel.stages_per_rank=2, or parallel.schedule=1f1b",
        ),
        (
            ["strategy=fsdp", "parallel.pp=2", "parallel.schedule=zero_bubble"],
            2,
            "parallel.schedule=zero_bubble is incompatible with strategy=fsdp: the two halves of its backwards need "
            "gathered parameters, which it does not keep throughout a step - "
            "use strategy=ddp or strategy=zero1, or parallel.schedule=1f1b",
        ),
        (
            [
                "model=llama_tiny",
                "strategy=zero2",
                "parallel.pp=2",
                "parallel.schedule=zbv",
                "parallel.stages_per_rank=2",
            ],
            2,
            "parallel.schedule=zbv is incompatible with strategy=zero2: the two halves of its backwards need "
            "gathered parameters, which it does not keep throughout a step - "
            "use strategy=ddp or strategy=zero1, or parallel.schedule=interleaved_1f1b",
        ),
        (
            ["model=gpt2_tiny", "strategy=ddp", "parallel.pp=2", "parallel.schedule=zbv", "parallel.stages_per_rank=2"],
            2,
            "parallel.schedule=zbv is incompatible with the tied embeddings of model=gpt2_tiny: the first and the last "
            "stage share a rank, which would hold the embedding twice under one name - "
            "use parallel.schedule=zero_bubble",
        ),
        (
            ["model=llama_tiny", "strategy=ddp", "parallel.pp=2", "parallel.schedule=zbv"],
            2,
            "parallel.schedule=zbv has 2 stages on each rank: parallel.stages_per_rank=1 - "
            "use parallel.stages_per_rank=2, or parallel.schedule=1f1b",
        ),
        (
            ["strategy=single", "parallel.pp=2"],
            1,
            "strategy=single is incompatible with parallel.pp=2: it does not implement the mesh dimension pp - "
            "use strategy=ddp or strategy=fsdp",
        ),
        (
            ["strategy=ddp", "strategy.find_unused_parameters=true", "parallel.pp=2"],
            2,
            "strategy.find_unused_parameters=true is incompatible with parallel.pp=2: forward and backward of several "
            "micro-batches alternate, which DDP cannot follow - use strategy.find_unused_parameters=false",
        ),
        (
            ["strategy=ddp", "parallel.stages_per_rank=2"],
            2,
            "parallel.stages_per_rank=2 needs a pipeline: parallel.pp=1 - "
            "use parallel.pp=2, or parallel.stages_per_rank=1",
        ),
        (["model.heads=7"], 2, "model.width=768 cannot be split into model.heads=7 - use model.heads=6"),
        (
            ["model=llama_tiny", "model.kv_heads=3"],
            2,
            "model.heads=8 cannot be split into model.kv_heads=3 - use model.kv_heads=2",
        ),
        (
            ["model=llama_tiny", "model.heads=128"],
            2,
            "model.width=128 over model.heads=128 gives heads of odd size: rotary positions rotate pairs of features - "
            "use model.width=256",
        ),
        (
            ["parallel.tp=3"],
            8,
            "parallel.tp=3 does not fit 8 ranks: the product of the degrees must divide the number of ranks - "
            "use parallel.tp=4, or 3 ranks",
        ),
        (
            ["parallel.dp_shard=4"],
            8,
            "parallel.dp_shard=4 does not fit 8 ranks: strategy=fsdp makes it 8 - "
            "use parallel.dp_shard=-1, or strategy=hsdp with strategy.dp_replicate and strategy.dp_shard",
        ),
        (
            ["model=gpt2_tiny", "parallel.ep=2"],
            2,
            "parallel.ep=2 divides experts, and model=gpt2_tiny has none - use model=moe_tiny, or parallel.ep=1",
        ),
        (
            ["model=moe_tiny", "parallel.ep=3"],
            4,
            "parallel.ep=3 does not fit 4 ranks: ep=3 does not divide dp_shard x cp x tp = 4 - use parallel.ep=2",
        ),
        (
            ["model=moe_tiny", "model.experts=5", "parallel.ep=2"],
            2,
            "model.experts=5 cannot be split into parallel.ep=2 equal parts - "
            "use parallel.ep=1, or model.experts=4 or model.experts=6",
        ),
        (
            ["model=moe_tiny", "strategy=deepspeed_zero2", "parallel.ep=2"],
            2,
            "strategy=deepspeed_zero2 is incompatible with parallel.ep=2: it does not implement the mesh dimension ep "
            "- use strategy=ddp or strategy=fsdp",
        ),
        (
            ["model=moe_tiny", "strategy=fsdp", "train.compile=true"],
            2,
            "model=moe_tiny is incompatible with train.compile=true: torch.compile and DataParallel do not support "
            "data-dependent routing - use train.compile=false",
        ),
        (
            ["model=moe_tiny", "strategy=tp", "parallel.sequence_parallel=false"],
            2,
            "model=moe_tiny is incompatible with parallel.sequence_parallel=false: ranks of tp would send the same "
            "tokens - use parallel.sequence_parallel=true",
        ),
        (
            ["model=moe_tiny", "strategy=ring", "model.capacity_factor=1.0"],
            2,
            "model=moe_tiny is incompatible with parallel.cp=2: the tokens that an expert accepts would depend on it - "
            "use model.capacity_factor=null",
        ),
        (
            ["model=moe_tiny", "strategy=tp", "parallel.ep=2", "parallel.placement=dp"],
            2,
            "parallel.ep=2 is incompatible with parallel.placement=dp: ep divides consecutive ranks of "
            "dp_shard x cp x tp - "
            "use parallel.placement=tp",
        ),
        (
            ["model=moe_tiny", "model.experts_per_token=9"],
            1,
            "model.experts_per_token=9 is more than 8: a token is sent to each expert at most once - "
            "use model.experts_per_token=8",
        ),
        (
            ["strategy=single", "parallel.tp=2"],
            1,
            "strategy=single is incompatible with parallel.tp=2: it does not implement the mesh dimension tp - "
            "use strategy=ddp or strategy=fsdp",
        ),
        (
            ["strategy=ring", "model=gpt2_tiny", "data.sequence_length=30"],
            2,
            "data.sequence_length=30 cannot be split over parallel.cp=2 parallel.context=ring: it is cut into 4 "
            "equal parts - use data.sequence_length=28 or data.sequence_length=32",
        ),
        (
            [
                "strategy=ulysses",
                "model=llama_tiny",
                "data.sequence_length=34",
                "parallel.tp=2",
                "train.micro_batch_size=1",
            ],
            4,
            "data.sequence_length=34 cannot be split over parallel.cp=2 parallel.context=ulysses parallel.tp=2: "
            "it is cut into 2 equal parts - use data.sequence_length=32 or data.sequence_length=36",
        ),
        (
            ["strategy=ulysses", "model=llama_tiny", "parallel.cp=8", "train.micro_batch_size=1"],
            8,
            "model.kv_heads=4 cannot be split over parallel.cp=8 parallel.context=ulysses: each rank attends with "
            "its own heads - use parallel.context=ring, or parallel.cp=4",
        ),
        (
            ["strategy=ulysses", "model=gpt2_tiny", "parallel.cp=4", "parallel.tp=2", "train.micro_batch_size=1"],
            8,
            "model.heads=4 cannot be split over parallel.cp=4 parallel.context=ulysses parallel.tp=2: each rank "
            "attends with its own heads - use parallel.context=ring, or parallel.cp=2",
        ),
        (
            ["strategy=ring", "model=gpt2_tiny", "model.dropout=0.1"],
            2,
            "parallel.cp=2 parallel.context=ring is incompatible with model.dropout=0.1: its attention has no dropout "
            "- use parallel.context=ulysses or model.dropout=0",
        ),
        (
            ["strategy=ring", "model=gpt2_tiny", "train.compile=true"],
            2,
            "parallel.cp=2 is incompatible with train.compile=true - use train.compile=false",
        ),
        (
            ["strategy=ring", "model=bert_tiny", "data=classification", "data.path=x"],
            2,
            "parallel.cp=2 is incompatible with model=bert_tiny: an encoder needs whole samples - "
            "use parallel.cp=1, or a GPT or Llama",
        ),
        (
            ["strategy=ring", "model=gpt2_tiny", "task=regression"],
            2,
            "parallel.cp=2 is incompatible with task=regression: targets are sharded with the tokens, one per token - "
            "use parallel.cp=1",
        ),
        (
            ["strategy=ring", "model=gpt2_tiny", "task._target_=a.Task"],
            2,
            "parallel.cp=2 is incompatible with task._target_: targets are sharded with the tokens, one per token - "
            "use parallel.cp=1",
        ),
        (
            ["strategy=ring", "model=custom", "model._target_=a.B"],
            2,
            "parallel.cp=2 is incompatible with model=custom: its attention is local - "
            "use parallel.cp=1, or a GPT or Llama",
        ),
        (
            ["strategy=ddp", "parallel.tp=2", "strategy.communication_hook=fp16"],
            4,
            "strategy.communication_hook=fp16 is incompatible with parallel.tp: the gradients of a model that is cut "
            "are averaged unit by unit, not in DDP's buckets - drop it, or use parallel.tp=1",
        ),
        (
            ["model=gpt2_tiny", "strategy=zero1", "engine=accelerate"],
            2,
            "engine=accelerate is incompatible with strategy=zero1: it wraps the model in DistributedDataParallel, "
            "or in FSDP2 over all ranks - use strategy=ddp or strategy=fsdp, or engine=native",
        ),
        (
            ["model=gpt2_tiny", "strategy=fsdp", "strategy.prefetch_depth=2", "engine=accelerate"],
            2,
            "engine=accelerate is incompatible with strategy.prefetch_depth=2: accelerate has no such setting - "
            "use engine=native",
        ),
        (
            [
                *("model=gpt2_tiny", "strategy=fsdp", "strategy.reshard_after_forward=2", "engine=accelerate"),
                "train.micro_batch_size=2",
            ],
            4,
            "engine=accelerate is incompatible with strategy.reshard_after_forward=2: accelerate has no such setting - "
            "use engine=native",
        ),
        (
            ["model=gpt2_tiny", "strategy=hsdp", "engine=accelerate", "train.micro_batch_size=2"],
            4,
            "engine=accelerate is incompatible with strategy=hsdp: it wraps the model in DistributedDataParallel, "
            "or in FSDP2 over all ranks - use strategy=ddp or strategy=fsdp, or engine=native",
        ),
        (
            ["strategy=zero1", "strategy.communication_hook=topk", "precision=fp16"],
            2,
            "strategy.communication_hook=topk with strategy.error_feedback=true is incompatible with precision=fp16: "
            "the error kept for the next step depends on a loss scale that changes, and is not finite after an "
            "overflow "
            "- use strategy.error_feedback=false, or precision=bf16",
        ),
        (
            ["parallel.tp=2"],
            2,
            "model.vocab_size=50257 cannot be split into parallel.tp=2 equal parts - "
            "use parallel.tp=1, or model.vocab_size=50258",
        ),
        (
            ["model=llama_tiny", "parallel.tp=8", "train.micro_batch_size=1"],
            8,
            "model.kv_heads=4 cannot be split into parallel.tp=8 equal parts - use parallel.tp=4, or model.kv_heads=8",
        ),
        (
            ["model=gpt2_tiny", "data.sequence_length=31", "parallel.tp=2"],
            2,
            "data.sequence_length=31 cannot be split into parallel.tp=2 equal parts - "
            "use parallel.tp=1, or data.sequence_length=30 or data.sequence_length=32",
        ),
        (
            ["model=gpt2_tiny", "parallel.tp=2", "parallel.sequence_parallel=false", "model.dropout=0.1"],
            2,
            "parallel.tp=2 with model.dropout=0.1 needs parallel.sequence_parallel=true: replicated activations need "
            "the same dropout mask on every rank, sharded ones need different masks - "
            "use parallel.sequence_parallel=true or model.dropout=0",
        ),
        (
            ["model=gpt2_tiny", "parallel.tp=2", "train.compile=true"],
            2,
            "parallel.tp=2 is incompatible with train.compile=true - use train.compile=false",
        ),
        (
            ["model=gpt2_tiny", "parallel.tp=2", "optimizer.in_backward=true", "train.clip_norm=null"],
            2,
            "optimizer.in_backward=true is incompatible with parallel.tp=2: some gradients are complete only after "
            "backward - use optimizer.in_backward=false",
        ),
        (
            ["data=classification"],
            2,
            "data=classification needs an encoder, not model=gpt2 - use model=bert_tiny",
        ),
        (
            ["model=bert_tiny"],
            2,
            "model=bert_tiny is an encoder: it needs labelled text, not data=stdlib - "
            "use data=classification, or model=gpt2_tiny",
        ),
        (
            ["strategy=hsdp", "strategy.dp_replicate=3"],
            4,
            "a mesh of strategy.dp_replicate=3 x strategy.dp_shard=-1 does not fit 4 ranks - "
            "valid dp_replicate x dp_shard: 4 x 1, 2 x 2, 1 x 4",
        ),
        (
            ["strategy=hsdp", "strategy.dp_shard=4"],
            4,
            "a mesh of strategy.dp_replicate=2 x strategy.dp_shard=4 does not fit 4 ranks - "
            "valid dp_replicate x dp_shard: 4 x 1, 2 x 2, 1 x 4",
        ),
        (
            ["strategy=hsdp", "strategy.dp_shard=0"],
            4,
            "strategy.dp_shard=0 is not a valid mesh degree - use a positive number, or -1 for the rest",
        ),
        (
            ["strategy=hsdp", "strategy.dp_replicate=-1"],
            4,
            "strategy.dp_replicate and strategy.dp_shard are both -1 - give one of them a number",
        ),
        (
            ["strategy=single"],
            2,
            "strategy=single runs in one process, not 2 - "
            "use launcher.nproc=1, or strategy=ddp or strategy=fsdp for several ranks",
        ),
        (["strategy=dp"], 1, "strategy=dp needs 2 CUDA devices, found 0 - use strategy=single or strategy=fsdp"),
        (
            ["launcher.backend=nccl"],
            2,
            "launcher.backend=nccl needs a GPU: NCCL moves data between CUDA devices - use launcher.backend=gloo",
        ),
        (["launcher.device=cuda"], 2, "launcher.device=cuda, but no CUDA device was found - use launcher.device=cpu"),
        (
            ["strategy=zero2", "strategy.reshard_after_forward=true"],
            2,
            "strategy=zero2 with strategy.reshard_after_forward=true is ZeRO-3 - use strategy=zero3 for that",
        ),
        (
            ["strategy=ddp", "strategy.static_graph=true", "strategy.find_unused_parameters=true"],
            2,
            "strategy.static_graph=true and strategy.find_unused_parameters=true are mutually exclusive: "
            "a static graph needs no search - drop one of them",
        ),
        (
            ["optimizer.in_backward=true"],
            2,
            "optimizer.in_backward=true is incompatible with clipping: the global norm is known only after backward - "
            "use train.clip_norm=null",
        ),
        (
            ["optimizer.in_backward=true", "train.clip_norm=null", "train.micro_batch_size=2"],
            2,
            "optimizer.in_backward=true is incompatible with accumulation over 2 micro-batches: "
            "each of them would update the parameters - use train.micro_batch_size=4",
        ),
        (
            ["optimizer.in_backward=true", "strategy=ddp"],
            2,
            "optimizer.in_backward=true is incompatible with strategy=ddp: "
            "gradients are reduced only after they are complete - use strategy=single or strategy=fsdp",
        ),
        (
            ["optimizer.in_backward=true", "precision=fp16"],
            2,
            "optimizer.in_backward=true is incompatible with loss scaling: "
            "the update happens before an overflow can be detected - use precision=bf16",
        ),
        (
            ["strategy=ddp", "strategy.offload=parameters"],
            2,
            "strategy.offload=parameters is incompatible with strategy=ddp: its forward needs whole parameters on "
            "the device - use strategy.offload=optimizer or strategy=zero3",
        ),
        (
            ["strategy=deepspeed_zero2", "strategy.offload=parameters"],
            2,
            "strategy.offload=parameters is incompatible with strategy=deepspeed_zero2: its forward needs whole "
            "parameters on the device - use strategy.offload=optimizer or strategy=deepspeed_zero3",
        ),
        (
            ["strategy=fsdp", *NVME],
            2,
            "strategy.offload_to=nvme moves nothing: strategy.offload=none - use strategy.offload=optimizer",
        ),
        (
            ["strategy=fsdp", "strategy.offload=optimizer", "strategy.offload_to=nvme"],
            2,
            "strategy.offload_to=nvme with strategy.offload_folder=null: the folder holds the file of "
            "offloaded states - use strategy.offload_to=nvme strategy.offload_folder=FOLDER, both or neither",
        ),
        (
            ["strategy=fsdp", "strategy.reshard_after_forward=3"],
            4,
            "strategy.reshard_after_forward=3 is incompatible with 4 ranks: it must divide dp_shard "
            "into at least two groups of two or more ranks, with no other mesh dimension "
            "- use strategy.reshard_after_forward=2",
        ),
        (
            ["strategy=fsdp", "strategy.reshard_after_forward=2", "parallel.tp=2", "model=gpt2_tiny"],
            4,
            "strategy.reshard_after_forward=2 is incompatible with dp_shard 2 x tp 2: it must divide dp_shard "
            "into at least two groups of two or more ranks, with no other mesh dimension "
            "- use strategy.reshard_after_forward=true",
        ),
        (
            ["strategy=fsdp", "strategy.reshard_after_forward=1"],
            2,
            "strategy.reshard_after_forward=1 is out of range: it must be 2 or more",
        ),
        (
            ["schedule=wsd", "train.steps=12"],
            2,
            "schedule.warmup_steps=5 + schedule.decay_steps=10 is more than train.steps=12 - "
            "use train.steps=15 or shorter phases",
        ),
        (["seed=-1"], 2, "seed=-1 is out of range: it must be 0 to 9223372036854775807"),
        (["train.steps=0"], 2, "train.steps=0 is out of range: it must be 1 or more"),
        (["train.clip_norm=0"], 2, "train.clip_norm=0 is out of range: it must be above 0"),
        (["model.dropout=1"], 2, "model.dropout=1 is out of range: it must be 0 or more and below 1"),
        (["launcher.master_port=70000"], 2, "launcher.master_port=70000 is out of range: it must be 0 to 65535"),
        (["optimizer.betas=[0.9]"], 2, "optimizer.betas has 1 numbers: AdamW has two - use optimizer.betas=[0.9,0.95]"),
        (
            ["optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"],
            2,
            "optimizer.nesterov=true needs optimizer.momentum above 0 - use optimizer.momentum=0.9",
        ),
    ],
)
def test_each_broken_rule_is_one_line(overrides: list[str], world_size: int, expected: str) -> None:
    with pytest.raises(DtkError) as caught:
        composed = compose(overrides)
        check_ranks(composed.config, world_size, "cpu")
        check(settle(composed, 2).config, world_size, "cpu")
    assert str(caught.value) == expected


@cache
def main_config() -> Config:
    return settle(compose([]), 2).config


def with_train(**values: int) -> Config:
    config = main_config()
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **values))  # type: ignore[arg-type]


@pytest.mark.parametrize("total", [1, 7, 8, 10, 12, 30])
@pytest.mark.parametrize("micro", [1, 4, 6])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_batch_sizes_that_are_advised_do_divide(total: int, micro: int, ranks: int) -> None:
    sizes = {"global_batch_size": total, "micro_batch_size": micro}
    try:
        check(with_train(**sizes), ranks, "cpu")
    except DtkError as error:
        for key in ("global", "micro"):
            match = re.search(rf"train\.{key}_batch_size=([\d, or]+)", error.fix)
            for number in re.findall(r"\d+", match.group(1)) if match else []:
                check(with_train(**sizes | {f"{key}_batch_size": int(number)}), ranks, "cpu")
    else:
        assert total % (micro * ranks) == 0


@pytest.mark.parametrize(
    ("overrides", "world_size", "device", "cuda_devices"),
    [
        ([], 2, "cpu", 0),
        (["train.steps=1"], 1, "cpu", 0),
        (["train.steps=5", "strategy=ddp"], 2, "cpu", 0),
        (["strategy=single"], 1, "cpu", 0),
        (["strategy=dp"], 1, "cuda", 2),
        (["strategy=hsdp", "train.micro_batch_size=2"], 4, "cpu", 0),
        (["strategy=hsdp", "strategy.dp_replicate=-1", "strategy.dp_shard=2", "train.micro_batch_size=2"], 4, "cpu", 0),
        (["strategy=zero2"], 2, "cpu", 0),
        (["strategy=zeropp", "strategy.reshard_after_forward=2", "train.micro_batch_size=2"], 4, "cpu", 0),
        (["strategy=ddp", "strategy.offload=optimizer"], 2, "cpu", 0),
        (
            ["strategy=single", "strategy.offload=optimizer", "strategy.offload_to=nvme", "strategy.offload_folder=x"],
            1,
            "cpu",
            0,
        ),
        (["strategy=ddp", "strategy.communication_hook=bf16"], 2, "cpu", 0),
        (["optimizer.in_backward=true", "train.clip_norm=null"], 2, "cpu", 0),
        ([*BERT], 2, "cpu", 0),
        (["launcher.backend=nccl", "launcher.device=cuda"], 2, "cuda", 2),
        (["model=custom", "model._target_=a.B", "data=classification"], 2, "cpu", 0),
    ],
)
def test_what_may_run_passes(overrides: list[str], world_size: int, device: str, cuda_devices: int) -> None:
    check(settle(compose(overrides), world_size).config, world_size, device, cuda_devices)


@pytest.mark.parametrize("experiment", ["smoke", "classification", "bench"])
@pytest.mark.parametrize(("world_size", "strategy"), [(1, "single"), (2, "ddp"), (2, "fsdp")])
def test_shipped_experiments_pass(experiment: str, world_size: int, strategy: str) -> None:
    check(settle(compose([f"experiment={experiment}", f"strategy={strategy}"]), 2).config, world_size, "cpu")


def test_the_recipe_of_gpt2_fits_its_node() -> None:
    config = settle(compose(["experiment=gpt2_124m", "data.path=x"]), 2).config
    check(config, 8, "cuda", 8)
    assert config.train.steps * config.train.global_batch_size * config.data.sequence_length >= 10_000_000_000 - 2**19


def numeric_keys() -> set[str]:
    """Dotted keys of the schema that hold numbers."""
    result = set()
    for field in dataclasses.fields(Config):
        kinds: Any = KINDS[field.name][1].values() if field.name in KINDS else [field.type]
        for kind in kinds:
            members = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else []
            result |= {f"{field.name}.{m.name}" for m in members if re.search(r"\b(int|float)\b", str(m.type))}
            result |= {field.name} if kind is int else set()
    return result


def test_every_number_of_the_schema_has_a_range() -> None:
    strategies = {f"strategy.{key}" for kind in KINDS["strategy"][1].values() for key in kind.limits}
    assert numeric_keys() == set(limits()) | strategies


def test_limits_accept_all_defaults() -> None:
    for group, (_, kinds) in KINDS.items():
        for kind in kinds.values():
            required = {"name": "x", "path": "x", "_target_": "a.B", "image": "x"}
            given = {
                f.name: required[f.name]
                for f in dataclasses.fields(kind)
                if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
            }
            check_limits(dataclasses.replace(main_config(), **{group: kind(**given)}))
