"""The blocks of a model: found in what users write, named where that is not enough."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from dtk.errors import DtkError
from dtk.parallel.blocks import blocks_of, choose_blocks, describe_blocks, named_blocks


class Block(nn.Module):
    def __init__(self, width=4, experts=0):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.experts = nn.ModuleList(nn.Linear(width, 1) for _ in range(experts))


def model(**parts):
    root = nn.Module()
    for name, part in parts.items():
        root.add_module(name, part)
    return root


def blocks(count, **arguments):
    return [Block(**arguments) for _ in range(count)]


def names(result):
    return [name for name, _ in named_blocks(result)]


def test_the_list_blocks_comes_first_whatever_else_there_is():
    result = model(layers=nn.ModuleList(blocks(9)), blocks=nn.ModuleList([nn.Linear(2, 2), Block()]))
    assert names(result) == ["blocks.0", "blocks.1"]


def test_blocks_that_are_no_list_of_modules_are_not_taken():
    result = model(layers=nn.ModuleList(blocks(2)))
    result.blocks = 12
    assert names(result) == ["layers.0", "layers.1"]


@pytest.mark.parametrize("kind", [nn.ModuleList, lambda result: nn.Sequential(*result)])
def test_the_largest_list_of_one_class_is_found(kind):
    heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(20))
    value = model(table=nn.Embedding(8, 4), encoder=model(layer=kind(blocks(3, width=8))), heads=heads)
    assert names(value) == ["encoder.layer.0", "encoder.layer.1", "encoder.layer.2"]
    assert describe_blocks(value) == "blocks: 3 x Block (encoder.layer.0 to encoder.layer.2)"


def test_experts_inside_blocks_are_no_blocks():
    """The list of experts of a block is longer than the list of blocks."""
    assert names(model(layers=nn.ModuleList(blocks(2, experts=64)))) == ["layers.0", "layers.1"]


def test_stages_of_one_class_are_all_blocks():
    stages = OrderedDict((f"stage{i}", nn.Sequential(*blocks(i + 2, width=4 * i))) for i in (1, 2))
    assert len(blocks_of(model(stem=nn.Linear(2, 2), **stages))) == 7


@pytest.mark.parametrize(
    "expected",
    [
        nn.Linear(2, 2),
        model(head=nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))),
        model(active=nn.ModuleList([nn.ReLU(), nn.ReLU()])),
        model(shared=nn.ModuleList([Block()] * 1)),
    ],
)
def test_a_model_without_blocks(expected):
    assert blocks_of(expected) == [] and "none found, so the model is one unit" in describe_blocks(expected)


def test_one_module_used_again_and_again_is_one_block_at_most():
    shared = Block()
    assert blocks_of(model(layers=nn.ModuleList([shared, shared, shared]))) == []


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (["Block"], ["down.0", "down.1", "up"]),
        (["down.*"], ["down.0", "down.1"]),
        (["Linear", "Block"], ["stem", "down.0", "down.1", "up"]),
        (["up", "stem"], ["stem", "up"]),
    ],
)
def test_blocks_are_named_by_class_or_pattern_and_never_lie_in_each_other(wrap, expected):
    result = model(stem=nn.Linear(2, 2), down=nn.ModuleList(blocks(2)), up=Block())
    choose_blocks(result, wrap)
    assert names(result) == expected
    assert names(result.to("meta")) == expected


def test_a_name_that_matches_nothing_is_refused_with_those_that_would():
    with pytest.raises(DtkError, match=r"model\.wrap=Blok matches no module.*classes Block, Linear, ModuleList"):
        choose_blocks(model(down=nn.ModuleList(blocks(2))), ["Block", "Blok"])


def test_what_was_chosen_stays_when_a_wrapper_changes_the_classes():
    result = model(down=nn.ModuleList(blocks(2)), up=nn.Linear(2, 2))
    choose_blocks(result, ["Linear"])
    before = blocks_of(result)
    for block in before:
        block.__class__ = type("FSDPLinear", (torch.nn.Linear,), {})
    assert blocks_of(result) == before
