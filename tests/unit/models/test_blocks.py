"""The pre-norm block: torch's own layer with the same weights, masks, dropout; rows of fused projections."""

import pytest
import torch
from torch import nn

from dtk.config.schema import EncoderConfig, GPTConfig
from dtk.models.blocks import MLP, Attention, Block, Transformer, by_head, by_part, runs
from dtk.models.declared import Initial
from dtk.models.gpt import GPT
from dtk.models.initialize import initialize, initialize_model
from dtk.parallel.placement import Piece

WIDTH, HEADS, LENGTH = 16, 4, 6


def test_a_block_is_torchs_pre_norm_layer() -> None:
    torch.manual_seed(0)
    block = Block(WIDTH, HEADS, 0.0, causal=True)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, 0.0, nn.GELU(approximate="tanh"), batch_first=True, norm_first=True
    )
    pairs = {
        "norm1": block.attention_norm, "norm2": block.mlp_norm, "linear1": block.mlp.up, "linear2": block.mlp.down,
        "self_attn.out_proj": block.attention.projection,
    }  # fmt: skip
    state = {f"{name}.{leaf}": getattr(module, leaf) for name, module in pairs.items() for leaf in ("weight", "bias")}
    qkv = block.attention.qkv
    state["self_attn.in_proj_weight"] = by_part(qkv.weight, HEADS)
    state["self_attn.in_proj_bias"] = by_part(qkv.bias, HEADS)
    layer.load_state_dict(state)
    x = torch.randn(2, LENGTH, WIDTH)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    assert torch.allclose(block(x), layer(x, src_mask=mask, is_causal=True), atol=1e-5)


def test_a_causal_block_does_not_look_ahead_and_a_mask_hides() -> None:
    x = torch.randn(1, LENGTH, WIDTH)
    changed = x.clone()
    changed[:, -1] += 1
    causal, both = Attention(WIDTH, HEADS, 0.0, causal=True), Attention(WIDTH, HEADS, 0.0, causal=False)
    assert torch.equal(causal(x)[:, :-1], causal(changed)[:, :-1])
    assert not torch.equal(both(x)[:, :-1], both(changed)[:, :-1])
    seen = torch.tensor([True] * (LENGTH - 1) + [False])[None, None, None]
    assert torch.equal(both(x, seen)[:, :-1], both(changed, seen)[:, :-1])


@pytest.mark.parametrize("module", [MLP(WIDTH, 0.5), Attention(WIDTH, HEADS, 0.5, causal=True)])
def test_dropout_is_for_training(module: nn.Module) -> None:
    x = torch.randn(1, LENGTH, WIDTH)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


@pytest.mark.parametrize("config", [GPTConfig(name="g"), EncoderConfig(name="e")])
def test_embeddings_add_positions_and_refuse_more_than_there_are(config: GPTConfig | EncoderConfig) -> None:
    small = type(config)(name="t", vocab_size=9, context_length=4, layers=1, heads=2, width=8)
    model = Transformer(small, causal=True).eval()
    tokens = torch.tensor([[1, 2, 3]])
    table, places = model.token_embedding.weight, model.position_embedding.weight
    assert torch.equal(model.embed(tokens)[0], table[1:4] + places[:3])
    assert torch.equal(model.embed(tokens, torch.tensor([1, 2, 3]))[0], table[1:4] + places[1:4])
    with pytest.raises(RuntimeError):
        model.embed(torch.zeros(1, 5, dtype=torch.int64))
    assert model.initial("final_norm.weight").kind == "ones"


ROW_WIDTH = 24


def test_stored_rows_are_whole_heads() -> None:
    stored = by_head(torch.arange(3 * ROW_WIDTH), HEADS)
    assert stored[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert stored[6:12].tolist() == [24, 25, 26, 27, 28, 29]  # the keys of the first head
    assert torch.equal(by_part(stored, HEADS), torch.arange(3 * ROW_WIDTH))


@pytest.mark.parametrize(("first", "count"), [(0, 72), (0, 36), (36, 36), (5, 20), (71, 1), (30, 0)])
def test_runs_name_the_logical_row_of_each_row_once(first: int, count: int) -> None:
    stored = by_head(torch.arange(3 * ROW_WIDTH), HEADS)
    named = torch.full((count,), -1)
    for at, logical, number in (result := runs(Piece((first, 0), (count, 5)), 3 * ROW_WIDTH, HEADS)):
        named[at : at + number] = torch.arange(logical, logical + number)
    assert torch.equal(named, stored[first : first + count])
    assert [run[1] for run in result] == sorted(run[1] for run in result)
    assert runs(Piece((first, 0), (count, 5)), 3 * ROW_WIDTH, None) == [(0, first, count)]


def test_a_logical_row_starts_with_the_values_that_it_had_before_rows_stood_by_head() -> None:
    """As the first half of all parts at once: the stream of values is one for the whole matrix."""
    name, normal = "blocks.0.attention.qkv.weight", Initial(kind="normal", std=0.02)
    before = torch.empty(3 * ROW_WIDTH, ROW_WIDTH)
    initialize(before, name, normal, 3)
    model = GPT(GPTConfig(name="t", vocab_size=50, context_length=16, layers=2, heads=HEADS, width=ROW_WIDTH))
    initialize_model(model, 3)
    weight = model.blocks[0].attention.qkv.weight.detach()
    assert torch.equal(weight, by_head(before, HEADS))
    assert not torch.equal(weight, before)
