"""What models declare: the return type of `model.initial(name)` and the rule that dtk's share, and their FLOPs."""

import math
from dataclasses import dataclass
from typing import Literal

STD = 0.02  # Standard deviation of GPT-2's and BERT's normal initialisation.
_RESIDUAL = (".attention.projection.weight", ".mlp.down.weight", ".mlp.shared.down.weight", ".mlp.experts.down")
_FUSED = (".attention.qkv.weight", ".attention.qkv.bias")


@dataclass(frozen=True, kw_only=True, slots=True)
class Initial:
    """The initialization of one parameter."""

    kind: Literal["normal", "zeros", "ones"]
    std: float = 0.0
    """Standard deviation of `normal` (its mean is 0)."""


def fused_heads(model: object, name: str) -> int | None:
    """Return the number of heads by which a parameter's rows are fused (see `dtk.models.blocks`); None if not fused."""
    heads: int | None = getattr(model, "fused_heads", None)
    return heads if name.endswith(_FUSED) else None


def transformer_initial(name: str, layers: int) -> Initial:
    """Return the initialisation of the named parameter of a pre-norm transformer with `layers` blocks.

    Biases are 0, norm weights 1, matrices normal with std 0.02. The two projections of a block that
    add to the residual stream have 0.02 / sqrt(2 * layers), so that the variance of the stream does not
    grow with depth (Radford et al. 2019, section 2.3).
    """
    module, _, leaf = name.rpartition(".")
    if leaf == "bias":
        return Initial(kind="zeros")
    if module.endswith("norm"):
        return Initial(kind="ones")
    if name.endswith(_RESIDUAL):
        return Initial(kind="normal", std=STD / math.sqrt(2 * layers))
    return Initial(kind="normal", std=STD)


def training_flops_per_token(parameters: int, layers: int, width: int, sequence_length: int) -> int:
    """Return the FLOPs of forward and backward for one token, by PaLM's formula 6N + 12LHQT.

    Source: Chowdhery et al. 2022, "PaLM", appendix B. A multiply-add counts 2; backward counts twice the forward. Not
    counted: recomputation (activation checkpointing), norms, softmax, activation functions, the optimizer. Attention is
    counted over the full sequence, also where it is causal.

    Args:
        parameters: N, the parameters that a token is multiplied with: all of them, biases and norms included, without
            the lookup tables of tokens and positions, but with the output projection (tied weights count once, as it).
        layers: L, blocks.
        width: H * Q, heads times the width of a query head.
        sequence_length: T, tokens per sample.
    """
    return 6 * parameters + 12 * layers * width * sequence_length
