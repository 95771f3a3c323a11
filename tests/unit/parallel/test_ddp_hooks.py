"""Blocks of 256 elements with a scale each: how far they may be off, and what is not finite stays so."""

import pytest
import torch

from dtk.parallel.compression import BLOCK, BLOCK_BYTES
from dtk.parallel.ddp_hooks import dequantize, quantize


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
