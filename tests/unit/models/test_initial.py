"""Which parameters start as zeros, ones or normal values, and with which deviation."""

import math

import pytest

from dtk.models.initial import STD, Initial, fused_heads, transformer_initial


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
