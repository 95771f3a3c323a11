"""The pre-norm block with biases: torch's own layer with the same weights, causality, masks and dropout."""

import pytest
import torch
from torch import nn

from dtk.config.schema import EncoderConfig, GPTConfig
from dtk.models.blocks import MLP, Attention, Block, Transformer, by_part

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
