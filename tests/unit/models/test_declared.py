"""Which parameters start as zeros, ones or normal values, and with which deviation."""

import math

import pytest

from dtk.models.declared import STD, Initial, fused_heads, training_flops_per_token, transformer_initial


@pytest.mark.parametrize(
    ("name", "kind", "std"),
    [
        ("blocks.0.attention.qkv.bias", "zeros", 0.0),
        ("final_norm.bias", "zeros", 0.0),
        ("final_norm.weight", "ones", 0.0),
        ("blocks.3.mlp_norm.weight", "ones", 0.0),
        ("token_embedding.weight", "normal", STD),
        ("blocks.0.attention.qkv.weight", "normal", STD),
        ("blocks.0.mlp.router.weight", "normal", STD),
        ("blocks.0.mlp.experts.up", "normal", STD),
        ("blocks.0.attention.projection.weight", "normal", STD / math.sqrt(16)),
        ("blocks.7.mlp.down.weight", "normal", STD / math.sqrt(16)),
        ("blocks.7.mlp.shared.down.weight", "normal", STD / math.sqrt(16)),
        ("blocks.7.mlp.experts.down", "normal", STD / math.sqrt(16)),
    ],
)
def test_by_the_name_of_a_parameter(name: str, kind: str, std: float) -> None:
    assert transformer_initial(name, 8) == Initial(kind=kind, std=pytest.approx(std))  # type: ignore[arg-type]


def test_only_fused_projections_have_rows_by_head() -> None:
    class Fused:
        fused_heads = 4

    assert fused_heads(Fused(), "blocks.0.attention.qkv.weight") == fused_heads(Fused(), "a.attention.qkv.bias") == 4
    assert fused_heads(Fused(), "blocks.0.attention.projection.weight") is None
    assert fused_heads(object(), "blocks.0.attention.qkv.weight") is None


def test_palm_540b_as_published() -> None:
    # Chowdhery et al. 2022, table 1 and appendix B: 118 layers, 48 heads of 256, 2,048 tokens.
    flops = training_flops_per_token(540_350_000_000, 118, 48 * 256, 2048)
    assert flops == 6 * 540_350_000_000 + 12 * 118 * 48 * 256 * 2048
    assert 0.01 < flops / (6 * 540_350_000_000) - 1 < 0.02, "attention adds little at that size"


def test_attention_grows_with_the_sequence_and_parameters_do_not() -> None:
    short, long = (training_flops_per_token(10**6, 4, 128, tokens) for tokens in (128, 1024))
    assert long - short == 12 * 4 * 128 * (1024 - 128)
