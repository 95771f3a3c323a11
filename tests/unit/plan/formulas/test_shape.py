"""Shapes of parameters as written down, against the modules of dtk.models and their parts under tensor parallelism."""

import dataclasses
from math import prod

import pytest
import torch

from dtk.config.schema import CustomModelConfig, MoEConfig
from dtk.errors import DtkError
from dtk.models.build import build_model
from dtk.plan.formulas.shape import block_of, cut, elements, model_shape, partial
from tests.unit.plan.closed_form_jobs import ENCODER, LLAMA, TINY

MODELS = {"gpt": TINY, "llama": LLAMA, "encoder": ENCODER, "tied": dataclasses.replace(LLAMA, tie_weights=True)}
MODELS["moe"] = MoEConfig(name="moe", width=64, ffn_width=96, expert_width=32, shared_experts=1, layers=2)
DENSE = dataclasses.replace(MODELS["moe"], layers=3, dense_layers=1)  # type: ignore[type-var]


@pytest.mark.parametrize("name", MODELS)
def test_names_and_shapes_are_those_of_the_module(name: str) -> None:
    with torch.device("meta"):
        module = build_model(MODELS[name], [])
    shape = model_shape(MODELS[name])
    theirs = [(key, tuple(value.shape)) for key, value in module.named_parameters()]
    assert shape.shapes == [size for _, size in theirs]
    assert shape.parameters == sum(p.numel() for p in module.parameters())
    blocks = [key for key, _ in theirs if block_of(key) is not None]
    assert {block_of(key) for key in blocks} == set(range(shape.layers))
    assert [key.split(".", 2)[2] for key in blocks if block_of(key) == 0] == [key for key, _ in shape.block]
    assert [key for key, _ in theirs if block_of(key) is None] == [key for key, _ in shape.root]


def test_names_follow_the_shapes_where_first_blocks_have_no_experts() -> None:
    with torch.device("meta"):
        module = build_model(DENSE, [])
    shape = model_shape(DENSE)
    assert shape.names == [name for name, _ in module.named_parameters()]
    assert len(shape.names) == len(shape.shapes)


def test_a_model_that_no_formula_knows_is_one_line() -> None:
    with pytest.raises(DtkError, match="the closed form does not know model="):
        model_shape(CustomModelConfig(_target_="mine.Model", name="mine"))


def test_declared_shapes_are_those_of_the_strategies() -> None:
    shape = model_shape(TINY)
    declared = shape.declared
    assert declared.parameters == shape.shapes
    assert len(declared.blocks) == TINY.layers
    assert elements(shape.block) == sum(map(prod, declared.blocks[0]))
    assert sum(map(prod, declared.rest)) == elements(shape.root)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_parts_of_a_cut_add_up(name: str, tp: int) -> None:
    whole = model_shape(MODELS[name])
    part = cut(whole, tp)
    replicated = [key for key, size in whole.block if dict(part.block)[key] == size]
    if tp == 1:
        assert part == whole
        return
    uncut = ("norm", "attention.projection.bias", "mlp.down.bias", "mlp.router", "mlp.experts")
    assert all(any(name in key for name in uncut) for key in replicated)
    for key, size in whole.block:
        if key not in replicated:
            assert tp * prod(dict(part.block)[key]) == prod(size), key
    network = "mlp.shared" if name == "moe" else "mlp"
    up, wide = dict(part.block)[f"{network}.up.weight"], dict(whole.block)[f"{network}.up.weight"]
    assert up == (wide[0] // tp, MODELS[name].width)
    assert dict(part.block)[f"{network}.down.weight"][1] * tp == dict(whole.block)[f"{network}.down.weight"][1]


def test_the_table_is_cut_along_the_vocabulary_and_an_encoders_head_is_whole() -> None:
    assert dict(cut(model_shape(TINY), 2).before)["token_embedding.weight"] == (TINY.vocab_size // 2, TINY.width)
    head = dict(cut(model_shape(ENCODER), 2).after)["head.weight"]
    assert head == (ENCODER.classes, ENCODER.width)


def test_gradients_of_a_part_of_the_sequence_are_those_of_what_is_not_cut() -> None:
    shape = model_shape(TINY)
    # Norms (two per block and the last one), the position table, biases behind a row-cut layer.
    norms = 2 * (2 * TINY.layers + 1)
    biases = 2 * TINY.layers
    shapes = partial(shape, 1)
    assert len(shapes) == norms + biases + 1
    assert (TINY.context_length, TINY.width) in shapes
    assert partial(shape, 3)[0] == (-(-shapes[0][0] // 3), *shapes[0][1:])
