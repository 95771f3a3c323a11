"""Layers that are cut over two ranks compute, together, what the whole layer computes, in both directions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtk.models.layers import (
    Column,
    Cut,
    Cuttable,
    Head,
    LayerNorm,
    PositionEmbedding,
    RMSNorm,
    Row,
    SelfAttention,
    TokenEmbedding,
    Whole,
    local_part,
    whole_sequence,
)
from tests.unit.rank_threads import on_ranks, whole_axis


@pytest.mark.parametrize(
    ("own", "torchs"),
    [
        (lambda: Column(6, 4), lambda: nn.Linear(6, 4)),
        (lambda: Row(6, 4), lambda: nn.Linear(6, 4)),
        (lambda: Whole(6, 4), lambda: nn.Linear(6, 4)),
        (lambda: Head(6, 4, bias=False), lambda: nn.Linear(6, 4, bias=False)),
        (lambda: LayerNorm(6), lambda: nn.LayerNorm(6)),
        (lambda: RMSNorm(6, eps=1e-5), lambda: nn.RMSNorm(6, eps=1e-5)),
    ],
)
def test_whole_layers_are_torchs(own: Callable[[], nn.Module], torchs: Callable[[], nn.Module]) -> None:
    layer, reference = own(), torchs()
    reference.load_state_dict(layer.state_dict())
    x = torch.randn(2, 3, 6)
    assert torch.equal(layer(x), reference(x))


def part(tensor: Tensor, dim: int, rank: int) -> nn.Parameter:
    return nn.Parameter(tensor.detach().chunk(2, dim)[rank].clone())


@pytest.mark.parametrize("sequence", [True, False])
def test_column_and_row_make_the_whole_feed_forward(sequence: bool) -> None:
    torch.manual_seed(1)
    up, down, x = Column(4, 8), Row(8, 4), torch.randn(2, 6, 4, requires_grad=True)
    y = down(F.gelu(up(x)))
    y.square().sum().backward()
    assert x.grad is not None and up.weight.grad is not None and down.weight.grad is not None

    def work(rank: int) -> None:
        cut = Cut(whole_axis(rank, 2), sequence)
        own_up, own_down = Column(4, 4), Row(4, 4)
        own_up.weight, own_up.bias = part(up.weight, 0, rank), part(up.bias, 0, rank)
        own_down.weight, own_down.bias, own_down.cut = part(down.weight, 1, rank), down.bias, cut
        rows = slice(rank * 3, rank * 3 + 3) if sequence else slice(None)
        own = x.detach()[:, rows].clone().requires_grad_()
        out = own_down(F.gelu(own_up(own_down.enter(own))))
        assert torch.allclose(out, y[:, rows], atol=1e-6)
        out.square().sum().backward()
        assert own.grad is not None and torch.allclose(own.grad, x.grad[:, rows], atol=1e-5)  # type: ignore[index]
        assert torch.allclose(own_up.weight.grad, up.weight.grad.chunk(2, 0)[rank], atol=1e-5)  # type: ignore[arg-type, union-attr]
        assert torch.allclose(own_down.weight.grad, down.weight.grad.chunk(2, 1)[rank], atol=1e-5)  # type: ignore[arg-type, union-attr]

    down.bias.requires_grad_(False)
    on_ranks(2, work)


@pytest.mark.parametrize("sequence", [True, False])
def test_a_divided_vocabulary_embeds_and_projects(sequence: bool) -> None:
    table, tokens = TokenEmbedding(10, 4), torch.tensor([[0, 4, 5, 9], [9, 9, 1, 6]])

    def work(rank: int) -> tuple[Tensor, Tensor]:
        own = TokenEmbedding(5, 4)
        own.weight, own.cut = part(table.weight, 0, rank), Cut(whole_axis(rank, 2), sequence)
        x = own(tokens)
        return x.detach(), own.logits(x).detach()

    (first, left), (second, right) = on_ranks(2, work)
    embedded = torch.cat((first, second), 1) if sequence else first
    assert torch.equal(embedded, table(tokens))
    assert torch.allclose(torch.cat((left, right), -1), table.logits(table(tokens)), atol=1e-6)


def test_positions_follow_the_sequence() -> None:
    table = PositionEmbedding(8, 4)
    assert torch.equal(table(torch.arange(3)), table.weight[:3])

    def work(rank: int) -> tuple[list[int], list[int]]:
        positions, layers = torch.arange(6), (Cuttable(), Cuttable())
        for layer, sequence in zip(layers, (True, False), strict=True):
            layer.cut = Cut(whole_axis(rank, 2), sequence)
        return layers[0].own(positions).tolist(), layers[1].own(positions).tolist()

    assert on_ranks(2, work) == [([0, 1, 2], [*range(6)]), ([3, 4, 5], [*range(6)])]


def test_a_whole_sequence_is_counted_and_bounded() -> None:
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    assert whole_sequence(tokens).tolist() == [0, 1, 2, 3, 4]
    assert whole_sequence(tokens, longest=3).tolist() == [0, 1, 2], "adding these to five tokens fails cleanly"


def test_shared_key_heads_and_a_core_of_another_kind() -> None:
    attention: Any = SelfAttention()
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    expected = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=True)
    assert torch.allclose(attention.attend(q, k, v), expected, atol=1e-6)
    attention.core = lambda q, k, v, dropout: q + dropout
    assert torch.equal(attention.attend(q, k, v, dropout=0.5), q + 0.5)


def test_under_autocast_activations_travel_in_its_type() -> None:
    def work(rank: int) -> torch.dtype:
        layer = Cuttable()
        layer.cut = Cut(whole_axis(rank, 2), True)
        with torch.autocast("cpu", torch.bfloat16):
            return layer.enter(torch.ones(1, 2, 4)).dtype

    assert on_ranks(2, work) == [torch.bfloat16] * 2
    plain = nn.Parameter(torch.ones(2))
    assert local_part(plain) is plain
