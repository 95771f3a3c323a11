"""The hops of all ranks, one rank after the other in one process, make the attention of the whole sequence.

The same on a CUDA device, whose kernels are others. The messages between real ranks are in
tests/dist/test_parallel_layouts.py.
"""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dtk.dimensions.cp import Part
from dtk.parallel import ring_attention
from dtk.parallel.collectives import Axis

RANKS, LENGTH = 4, 64
CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")]


class Neighbours:
    """Hands a rank the keys that the other ranks would send, and keeps the gradients that it sends on."""

    def __init__(self, rank: int, keys: list[Tensor]) -> None:
        sources = [keys[(rank - hop) % RANKS] for hop in range(RANKS)]
        self.after = {here.data_ptr(): behind for here, behind in pairwise(sources)}
        self.sent: list[Tensor] = []

    def shift(self, x: Tensor, axis: Axis) -> Any:
        """What follows the keys; gradients begin with nothing on every hop."""
        if x.data_ptr() in self.after:
            return Arrived(self.after[x.data_ptr()])
        self.sent.append(x)
        return Arrived(torch.zeros_like(x))


class Arrived:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def wait(self) -> Tensor:
        return self.x


@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [
        ("cpu", torch.float32, 5e-6),
        ("cpu", torch.bfloat16, 5e-2),
        pytest.param("cuda", torch.float32, 5e-5, marks=CUDA),
        pytest.param("cuda", torch.bfloat16, 5e-2, marks=CUDA),
    ],
)
def test_all_hops_make_the_attention_of_the_whole_sequence(
    device: str, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, weight = (
        torch.randn(2, heads, LENGTH, 16, generator=generator).to(device, dtype) for heads in (4, 2, 2, 4)
    )
    whole = [each.float().clone().requires_grad_() for each in (q, k, v)]
    expected = F.scaled_dot_product_attention(*whole, is_causal=True, enable_gqa=True)
    (expected * weight.float()).sum().backward()
    expected = expected.detach()
    parts = [Part(Axis("cp", None, rank, RANKS), "ring") for rank in range(RANKS)]  # type: ignore[arg-type]
    keys = [torch.stack((part._cut(k, 2), part._cut(v, 2))) for part in parts]
    gradients = [torch.zeros_like(each, dtype=torch.float32) for each in keys]
    for rank, part in enumerate(parts):
        neighbours = Neighbours(rank, keys)
        monkeypatch.setattr(ring_attention, "shift", neighbours.shift)
        own = part._cut(q, 2).requires_grad_()
        y = ring_attention._Ring.apply(own, keys[rank], part.axis)
        (y * part._cut(weight, 2)).sum().backward()
        for hop, sent in enumerate(neighbours.sent):
            gradients[(rank - hop) % RANKS] += sent
        assert (y - part._cut(expected, 2)).abs().max() < tolerance
        assert (own.grad - part._cut(whole[0].grad, 2)).abs().max() < tolerance
    for part, gradient in zip(parts, gradients, strict=True):
        for result, of in zip(gradient, whole[1:], strict=True):
            assert (result - part._cut(of.grad, 2)).abs().max() < 4 * tolerance
