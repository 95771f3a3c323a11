"""Rows of fused projections: by head as they are stored, by part as they are drawn and exchanged."""

import pytest
import torch

from dtk.config.schema import GPTConfig
from dtk.models.blocks import by_head, by_part, runs
from dtk.models.gpt import GPT
from dtk.models.initial import Initial
from dtk.models.initialize import initialize, initialize_model
from dtk.parallel.placement import Piece

HEADS, WIDTH = 4, 24


def test_stored_rows_are_whole_heads() -> None:
    stored = by_head(torch.arange(3 * WIDTH), HEADS)
    assert stored[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert stored[6:12].tolist() == [24, 25, 26, 27, 28, 29]  # the keys of the first head
    assert torch.equal(by_part(stored, HEADS), torch.arange(3 * WIDTH))


@pytest.mark.parametrize(("first", "count"), [(0, 72), (0, 36), (36, 36), (5, 20), (71, 1), (30, 0)])
def test_runs_name_the_logical_row_of_each_row_once(first: int, count: int) -> None:
    stored = by_head(torch.arange(3 * WIDTH), HEADS)
    named = torch.full((count,), -1)
    for at, logical, number in (found := runs(Piece((first, 0), (count, 5)), 3 * WIDTH, HEADS)):
        named[at : at + number] = torch.arange(logical, logical + number)
    assert torch.equal(named, stored[first : first + count])
    assert [run[1] for run in found] == sorted(run[1] for run in found)
    assert runs(Piece((first, 0), (count, 5)), 3 * WIDTH, None) == [(0, first, count)]


def test_a_logical_row_starts_with_the_values_that_it_had_before_rows_stood_by_head() -> None:
    """As the first half of all parts at once: the stream of values is one for the whole matrix."""
    name, normal = "blocks.0.attention.qkv.weight", Initial(kind="normal", std=0.02)
    before = torch.empty(3 * WIDTH, WIDTH)
    initialize(before, name, normal, 3)
    model = GPT(GPTConfig(name="t", vocab_size=50, context_length=16, layers=2, heads=HEADS, width=WIDTH))
    initialize_model(model, 3)
    weight = model.blocks[0].attention.qkv.weight.detach()
    assert torch.equal(weight, by_head(before, HEADS))
    assert not torch.equal(weight, before)
