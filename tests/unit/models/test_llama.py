"""Llama: causality, relative positions, grouped queries, and the logits of transformers' LlamaForCausalLM."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dtk.config.schema import LlamaConfig
from dtk.models.llama import Llama, rotary_table, rotate

TINY = LlamaConfig(name="tiny", vocab_size=50, context_length=16, layers=2, heads=8, kv_heads=2, width=32, ffn_width=48)


def test_a_token_changes_no_logits_before_it(random_model: Any) -> None:
    model = random_model(TINY)
    tokens = torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 50
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] - after[:, 9:]).abs().amax(dim=2).min() > 1e-4


def test_rotary_scores_depend_on_the_distance_only() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(8, generator=generator), torch.randn(8, generator=generator)
    tables = rotary_table(torch.arange(12), 8, 10000.0)
    scores = rotate(q.expand(1, 1, 12, 8), *tables)[0, 0] @ rotate(k.expand(1, 1, 12, 8), *tables)[0, 0].T
    for distance in range(-11, 12):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[0].expand_as(diagonal), atol=1e-5, rtol=0)
    assert scores[0].std() > 1e-2


def test_grouped_heads_equal_full_heads_with_repeated_keys(random_model: Any) -> None:
    grouped = random_model(TINY)
    full = random_model(replace(TINY, kv_heads=8))
    state = grouped.state_dict()
    for name in [n for n in state if n.endswith(("attention.k.weight", "attention.v.weight"))]:
        state[name] = state[name].unflatten(0, (2, 4)).repeat_interleave(4, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    tokens = torch.arange(16).unsqueeze(0)
    torch.testing.assert_close(grouped(tokens), full(tokens), atol=1e-5, rtol=1e-5)


def test_tied_weights_have_no_head_and_no_second_parameter() -> None:
    untied, tied = Llama(TINY), Llama(replace(TINY, tie_weights=True))
    difference = set(dict(untied.named_parameters())) - set(dict(tied.named_parameters()))
    assert difference == {"head.weight"}
    assert tied(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 50)


@pytest.mark.parametrize("tie", [False, True])
def test_flops_count_the_output_projection_once(tie: bool) -> None:
    # Per block: q and projection 32*32 each, k and v 32*8 each, three matrices 32*48, two norms of 32.
    blocks = 2 * (2 * 1024 + 2 * 256 + 3 * 1536 + 64)
    expected = 6 * (blocks + 32 + 50 * 32) + 12 * 2 * 32 * 16
    assert Llama(replace(TINY, tie_weights=tie)).flops_per_token(16) == expected


def test_logits_equal_those_of_transformers(random_model: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf (transformers)")
    model = random_model(TINY)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=16,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        )
    ).eval()
    words = {
        "token_embedding": "model.embed_tokens",
        "final_norm": "model.norm",
        "head.": "lm_head.",
        "blocks": "model.layers",
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "attention.projection": "self_attn.o_proj",
        "attention.": "self_attn.",
        "mlp.": "mlp.",
    }
    state = {}
    for name, value in model.state_dict().items():
        for ours, other in words.items():
            name = name.replace(ours, other)
        name = name.replace(".q.", ".q_proj.").replace(".k.", ".k_proj.").replace(".v.", ".v_proj.")
        name = name.replace("gate.", "gate_proj.").replace("up.", "up_proj.").replace("down.", "down_proj.")
        state[name] = value
    theirs.load_state_dict(state)
    tokens = torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(tokens), theirs(tokens).logits, atol=1e-4, rtol=0)
