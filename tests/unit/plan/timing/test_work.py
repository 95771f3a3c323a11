"""Seconds of compute: layouts against the modules, the roofline of a block and a head, the update, clipping."""

import dataclasses
from math import prod
from typing import Any

import pytest
import torch

from dtk.config.schema import MoEConfig, SGDConfig, head_blocks
from dtk.errors import DtkError
from dtk.models.build import build_model
from dtk.models.declared import training_flops_per_token
from dtk.parallel.number_formats import PrecisionConfig
from dtk.plan.timing.hardware import Hardware, load_hardware
from dtk.plan.timing.work import clip_seconds, layout, micro_batch_seconds, optimizer_seconds
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.single import SingleConfig
from tests.unit.plan.closed_form_jobs import ENCODER, LLAMA, TINY, job

H100 = load_hardware("h100_sxm")
MODELS = {"gpt": TINY, "llama": LLAMA, "tied": dataclasses.replace(LLAMA, tie_weights=True), "encoder": ENCODER}


def single(model: Any = TINY, **values: Any) -> Any:
    return job(1, SingleConfig(), model, **values)


@pytest.mark.parametrize("name", MODELS)
def test_a_layout_is_that_of_the_module(name: str) -> None:
    config = single(MODELS[name])
    with torch.device("meta"):
        module: Any = build_model(config.model, [])
    result = layout(config)
    assert result.shapes == [tuple(parameter.shape) for parameter in module.parameters()]
    assert sum(map(prod, result.shapes)) == sum(parameter.numel() for parameter in module.parameters())
    assert result.flops_per_token == pytest.approx(module.flops_per_token(config.data.sequence_length), rel=1e-6)


@pytest.mark.parametrize("name", [*MODELS, "moe"])
def test_stages_are_divided_by_the_flops_of_the_plan(name: str) -> None:
    moe = MoEConfig(name="moe", experts=8, experts_per_token=2, shared_experts=1)
    config = single({**MODELS, "moe": moe}[name])
    result = layout(config)
    worth = head_blocks(config.model, config.data.sequence_length)
    assert worth == pytest.approx(result.rest_flops / result.block_flops, rel=0.03, abs=0.01)


def test_a_block_is_bound_by_flops_and_by_what_it_streams() -> None:
    config = single(sequence=64, micro=2)
    result = layout(config)
    tokens = 2 * 64
    seconds = micro_batch_seconds(config, result, H100)
    products_s = tokens * result.block_flops / 3 / H100.matmul_rate("float32")
    # Two norms 4 h, two residual sums 6 h, heads made contiguous 2 h, GELU 2 x 4 h: 20 h elements of 4 bytes.
    streamed_s = tokens * 20 * TINY.width * 4 / H100.memory_rate
    assert seconds.block_forward == pytest.approx(products_s + streamed_s)
    assert seconds.block_backward == 2 * seconds.block_forward
    assert seconds.block_recompute == seconds.block_forward


def test_under_autocast_the_stream_is_float32_and_norms_are_cast() -> None:
    precision = PrecisionConfig(name="bf16", compute_dtype="bfloat16")
    config = dataclasses.replace(single(sequence=64, micro=2), precision=precision)
    result = layout(config)
    products_s = 128 * result.block_flops / 3 / H100.matmul_rate("bfloat16")
    for strategy, stream in ((SingleConfig(), 10 * 4 + 2 * (4 + 2)), (FSDPConfig(), 10 * 2)):
        seconds = micro_batch_seconds(dataclasses.replace(config, strategy=strategy), result, H100)
        streamed_s = 128 * (stream + 10 * 2) * TINY.width / H100.memory_rate
        assert seconds.block_forward == pytest.approx(products_s + streamed_s)


def test_dropout_behind_attention_and_network_reads_writes_and_keeps_a_mask() -> None:
    whole, dropped = (single(dataclasses.replace(TINY, dropout=rate), sequence=64, micro=2) for rate in (0.0, 0.1))
    moved_s = 2 * 64 * 5 * TINY.width * 4 / H100.memory_rate
    before, after = (micro_batch_seconds(config, layout(config), H100).block_forward for config in (whole, dropped))
    assert after == pytest.approx(before + moved_s)


def test_the_head_reads_and_writes_its_logits() -> None:
    config = single(sequence=64, micro=2)
    result, tokens = layout(config), 2 * 64
    seconds = micro_batch_seconds(config, result, H100)
    product_s = tokens * result.rest_flops / 3 / H100.matmul_rate("float32")
    logits = tokens * TINY.vocab_size
    assert seconds.head_forward == pytest.approx(product_s + 8 * logits / H100.memory_rate)
    assert seconds.head_backward == pytest.approx(2 * product_s + 16 * logits / H100.memory_rate)
    bf16 = micro_batch_seconds(single(sequence=64, micro=2, precision="bfloat16"), result, H100)
    product_s = tokens * result.rest_flops / 3 / H100.matmul_rate("bfloat16")
    assert bf16.head_forward == pytest.approx(product_s + (8 + 2 + 4) * logits / H100.memory_rate), "and casts them"


def test_an_encoder_has_a_few_logits_per_sample() -> None:
    config = single(ENCODER, micro=2)
    result = layout(config)
    product_s = 2 * 64 * result.rest_flops / 3 / H100.matmul_rate("float32")
    seconds = micro_batch_seconds(config, result, H100)
    assert seconds.head_forward == pytest.approx(product_s + 8 * 2 * ENCODER.classes / H100.memory_rate)


def test_a_rank_of_tp_computes_its_part() -> None:
    config = single()
    cut = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, tp=4))
    result = layout(config)
    whole, part = micro_batch_seconds(config, result, H100), micro_batch_seconds(cut, result, H100)
    assert part.block_forward == pytest.approx(whole.block_forward / 4), "norms too, with sequence_parallel"
    unsplit = dataclasses.replace(cut.parallel, sequence_parallel=False)
    more = micro_batch_seconds(dataclasses.replace(cut, parallel=unsplit), result, H100)
    assert whole.block_forward / 4 < more.block_forward < whole.block_forward
    assert layout(cut).blocks[0] != result.blocks[0]
    assert layout(cut).flops_per_token == result.flops_per_token, "FLOPs are those of the whole model"


@pytest.mark.parametrize(
    ("optimizer", "streams"), [(None, 7), (SGDConfig(momentum=0.9), 5), (SGDConfig(momentum=0.0), 3)]
)
def test_the_update_is_bound_by_memory(optimizer: Any, streams: int) -> None:
    config = single(optimizer=optimizer)
    assert optimizer_seconds(config, 1000, H100) == pytest.approx(streams * 4000 / H100.memory_rate)


def test_clipping_reads_once_and_scales_once() -> None:
    assert clip_seconds(single(clip=1.0), 1000, H100) == (4000 / H100.memory_rate, 8000 / H100.memory_rate)
    assert clip_seconds(single(clip=None), 1000, H100) == (0.0, 0.0)


def test_a_type_without_a_rate_is_one_line() -> None:
    slow: Hardware = dataclasses.replace(H100, matmul_flops={"float32": 1e12})
    config = single(precision="bfloat16")
    with pytest.raises(DtkError, match="has no rate for bfloat16"):
        micro_batch_seconds(config, layout(config), slow)


def test_flops_are_those_that_mfu_counts() -> None:
    result = layout(single())
    block = sum(map(prod, result.blocks[0]))
    assert result.block_flops == training_flops_per_token(block, 1, TINY.width, 64)
