"""Blocks of int8: bounded errors, no element of one parameter in the block of another."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from dtk.parallel import compression, int8
from dtk.parallel.compression import BLOCK, BLOCK_BYTES
from dtk.parallel.int8 import Blocks, dequantize, leave_rounding, quantize, total


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e30])
def test_an_element_is_at_most_half_a_step_of_its_block_off(size):
    blocks = size * torch.randn(100, BLOCK, generator=torch.Generator().manual_seed(0))
    packed = quantize(blocks)
    assert packed.shape == (100, BLOCK_BYTES) and packed.dtype == torch.uint8
    largest = blocks.abs().amax(1, keepdim=True)
    assert bool(((dequantize(packed) - blocks).abs() <= largest / 254 * 1.0001).all())


def test_zeros_stay_zeros_and_other_blocks_do_not_suffer_from_what_is_not_finite():
    blocks = torch.ones(4, BLOCK)
    blocks[0], blocks[1, 3], blocks[2, 5] = 0, float("inf"), float("nan")
    back = dequantize(quantize(blocks))
    assert bool((back[0] == 0).all()) and bool((back[3] == 1).all())
    assert not bool(back[1:3].isfinite().any())


def test_few_blocks_at_once_give_what_all_give(monkeypatch):
    sizes, rows = [700, 3, 256], 5
    flat, layout = torch.randn(rows, sum(sizes), generator=torch.Generator().manual_seed(1)), Blocks(sizes)
    whole = quantize(layout.split(flat))
    back, summed = torch.empty_like(flat), total(whole, rows)
    for at_once in (2**16, 1, 2 * layout.count + 1):
        for module in (int8, compression):
            monkeypatch.setattr(module, "BLOCKS_AT_ONCE", at_once)
        assert torch.equal(quantize(layout.split(flat)), whole)
        layout.unpack(whole, back)
        assert torch.equal(layout.split(back), dequantize(whole))
        assert torch.allclose(total(whole, rows), summed, atol=1e-5)
        words = layout.split(flat)
        leave_rounding(words, whole)
        assert torch.equal(words, layout.split(flat) - dequantize(whole))
    assert torch.allclose(summed, dequantize(whole).view(rows, -1, BLOCK).sum(0), atol=1e-5)


@given(st.lists(st.integers(1, 700), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=50)
def test_a_parameter_fills_its_blocks_alone_and_comes_back(sizes: list[int], rows: int, parts: int) -> None:
    layout = Blocks(sizes, parts)
    flat = torch.randn(rows, sum(sizes))
    blocks = layout.split(flat)
    assert len(blocks) == rows * layout.count and layout.count % parts == 0
    again = torch.empty_like(flat)
    layout.join(blocks, again)
    assert torch.equal(flat, again)
    large = torch.cat([torch.full((1, size), 10.0**i) for i, size in enumerate(sizes)], 1)
    assert all(len(block[block != 0].unique()) <= 1 for block in layout.split(large))
