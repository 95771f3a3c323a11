"""The published tables, to the printed digit."""

import pytest

from dtk.config.compose import compose
from dtk.plan.formulas.closed_form import closed_form
from dtk.plan.formulas.holding import owned_elements
from dtk.plan.formulas.shape import model_shape
from dtk.sharding.declared import shard_elements
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.zero1 import Zero1Config
from dtk.strategies.zero3 import Zero3Config
from tests.unit.plan.closed_form_jobs import gpt, job
from tests.unit.plan.published import (
    activation_bytes,
    communication_volume,
    float32_states,
    fsdp_hybrid_traffic,
    fsdp_peak_elements,
    model_states_bytes,
    model_states_total_bytes,
    ring_traffic_bytes,
    transformer_parameters,
)

STAGES = (0, 1, 2, 3)
GPT_175B = transformer_parameters(96, 12288, 51200, 2048)
GPT_1T = transformer_parameters(128, 25600, 51200, 2048)
GPT2_XL = transformer_parameters(48, 1600, 50257, 1024)
GPT2 = transformer_parameters(12, 768, 50257, 1024)


def test_zero_paper_7_5_billion_on_64_ranks():
    states = [model_states_bytes(7.5e9, 64, stage) / 1e9 for stage in STAGES]
    assert [f"{states[0]:.0f}", *(f"{s:.1f}" for s in states[1:])] == ["120", "31.4", "16.6", "1.9"]
    assert [communication_volume(1, stage) for stage in STAGES] == [2, 2, 2, 3]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # The released checkpoints' own counts.
        ("llama3_8b", 8_030_261_248),
        ("llama3_70b", 70_553_706_496),
        ("llama3_405b", 405_853_388_800),
        ("gpt2_xl", 1_557_611_200),
        # Brown et al. 2020, table D.1, has 174,600 million.
        ("gpt3_175b", 174_604_259_328),
        # q, k and v of each of the 80 layers have biases there: 8192 + 2 * 1024.
        ("qwen2_72b", 72_706_203_648 - 80 * (8192 + 2 * 1024)),
        # ALiBi in place of the position table, and a norm after the embedding.
        ("bloom_176b", 176_247_271_424 + 2048 * 14336 - 2 * 14336),
    ],
)
def test_the_shipped_shapes_have_the_published_parameters(name, parameters):
    assert model_shape(compose([f"model={name}"]).config.model).parameters == parameters


def test_sixteen_bytes_per_parameter_in_mixed_precision():
    assert all(model_states_bytes(1, ranks, 0) == 16 for ranks in (1, 8, 1024))


@pytest.mark.parametrize(
    ("parameters", "ranks", "expected"),
    [
        (7.5e9, 1, ("120.00", "120.00", "120.00", "120.00")),
        (7.5e9, 8, ("120.00", "41.25", "28.12", "15.00")),
        (7.5e9, 64, ("120.00", "31.41", "16.64", "1.88")),
        (7.5e9, 1024, ("120.00", "30.09", "15.10", "0.12")),
        (GPT_175B, 8, ("2793.85", "960.39", "654.81", "349.23")),
        (GPT_175B, 64, ("2793.85", "731.20", "387.43", "43.65")),
        (GPT_175B, 256, ("2793.85", "706.65", "358.78", "10.91")),
        (GPT_175B, 1024, ("2793.85", "700.51", "351.62", "2.73")),
        (GPT_1T, 64, ("16128.62", "4221.16", "2236.59", "252.01")),
        (GPT_1T, 256, ("16128.62", "4079.41", "2071.20", "63.00")),
        (GPT_1T, 1024, ("16128.62", "4043.97", "2029.86", "15.75")),
        (GPT2_XL, 8, ("24.92", "8.57", "5.84", "3.12")),
        (GPT2_XL, 64, ("24.92", "6.52", "3.46", "0.39")),
        (GPT2, 8, ("1.99", "0.68", "0.47", "0.25")),
        (GPT2, 64, ("1.99", "0.52", "0.28", "0.03")),
    ],
)
def test_model_states_of_known_models(parameters, ranks, expected):
    assert tuple(f"{model_states_bytes(parameters, ranks, stage) / 1e9:.2f}" for stage in STAGES) == expected


def test_smallest_number_of_ranks_that_holds_the_states():
    def smallest(parameters, device_bytes):
        return next(n for n in range(1, 2000) if model_states_bytes(parameters, n, 3) <= device_bytes)

    assert [smallest(psi, 80e9) for psi in (7.5e9, GPT_175B, GPT_1T)] == [2, 35, 202]
    assert [smallest(psi, 32e9) for psi in (7.5e9, GPT_175B, GPT_1T)] == [4, 88, 505]


def test_parameters_and_zero_infinity_states():
    assert (GPT_175B, GPT_1T) == (174_615_846_912, 1_008_038_758_400)
    assert (GPT2, GPT2_XL) == (124_439_808, 1_557_611_200)
    assert f"{model_states_total_bytes(128, 25600) / 1e12:.1f}" == "20.1"


@pytest.mark.parametrize(
    ("parameters", "ranks", "expected"),
    [
        (7.5e9, 64, ("29.5", "44.3", "59.1")),
        (7.5e9, 1024, ("30.0", "45.0", "59.9")),
        (GPT_175B, 64, ("687.5", "1031.3", "1375.1")),
        (GPT_175B, 1024, ("697.8", "1046.7", "1395.6")),
        (GPT_1T, 64, ("3969.2", "5953.7", "7938.3")),
        (GPT_1T, 1024, ("4028.2", "6042.3", "8056.4")),
    ],
)
def test_ring_traffic(parameters, ranks, expected):
    figures = [
        ring_traffic_bytes(parameters, ranks, 0),
        ring_traffic_bytes(parameters, ranks, 3),
        ring_traffic_bytes(parameters, ranks, 3, reduce_bytes=4),
    ]
    assert tuple(f"{figure / 1e9:.1f}" for figure in figures) == expected


@pytest.mark.parametrize(
    ("layers", "batch", "width", "heads", "expected"),
    [
        (48, 4, 6144, 64, ("339.8", "63.6", "42.5", "10.3", "4.8")),
        (96, 1, 12288, 96, ("275.4", "55.6", "34.4", "10.3", "4.8")),
        (105, 1, 20480, 128, ("431.6", "92.5", "53.9", "18.7", "8.8")),
        (128, 1, 25600, 160, ("657.7", "140.9", "82.2", "28.5", "13.4")),
    ],
)
def test_activations_of_korthikanti(layers, batch, width, heads, expected):
    """22B, 175B, 530B, 1T: none, TP 8, TP 8 + SP, the same + selective, full; GB of all layers."""
    ways = [
        {},
        {"tensor_parallel": 8},
        {"tensor_parallel": 8, "sequence_parallel": True},
        {"tensor_parallel": 8, "sequence_parallel": True, "recomputation": "selective"},
        {"recomputation": "full"},
    ]
    figures = [layers * activation_bytes(2048, batch, width, heads, **way) / 1e9 for way in ways]
    assert tuple(f"{figure:.1f}" for figure in figures) == expected


def test_fsdp_paper():
    assert fsdp_peak_elements(100, [10, 30], 10) == 40
    replicated, sharded, hybrid = fsdp_hybrid_traffic(1.0, 512, 8)
    assert sharded == 1.5 * replicated
    assert hybrid == replicated / 8


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_float32_states_are_what_the_engine_leaves_after_backward(stage):
    strategy = {0: DDPConfig(), 1: Zero1Config(), 3: Zero3Config()}[stage]
    prediction = closed_form(job(4, strategy, gpt()), 4)
    after_backward = prediction.memory.by_region_bytes["optimizer"] / (4 * prediction.parameters)
    # ZeRO-1's fullest rank has the embedding: 31% of the state instead of 25%.
    imbalance = 2 * (38_597_376 / prediction.parameters - 1 / 4) if stage == 1 else 0
    assert after_backward == pytest.approx(float32_states(stage, 4) + imbalance, abs=1e-4)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (gpt(12, 768, 12), ("0.03", "0.1", "11.7", "21.7", "15.8", "69.6", "148", "801")),
        (gpt(48, 1600, 25), ("0", "5.1", "13.9", "14.0", "16.5", "26.7", "87.8", "474")),
        (gpt(96, 12288, 96, vocab=51200, context=2048), ("0", "0", "0", "3.1", "0", "0", "0", "22.3")),
    ],
    ids=["gpt2", "gpt2_xl", "175B"],
)
def test_padding_of_shards(model, expected):
    """Elements that FSDP2 gathers over those that exist, in percent, for these numbers of ranks."""
    shape = model_shape(model)
    for ranks, printed in zip((64, 256, 512, 1000, 1024, 2048, 4096, 16384), expected, strict=True):
        digits = len(printed.partition(".")[2])
        padding = 100 * (ranks * shard_elements(shape.shapes, ranks) / shape.parameters - 1)
        assert f"{padding:.{digits}f}" == printed, ranks


def test_fullest_rank_of_zero1():
    shapes = model_shape(gpt(12, 768, 12)).shapes
    assert max(owned_elements(shapes, 2)) == 62_220_288
    assert {max(owned_elements(shapes, ranks)) for ranks in (4, 8, 64, 1024)} == {38_597_376}
