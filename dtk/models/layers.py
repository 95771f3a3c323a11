"""Layers that declare how tensor parallelism may shard them, and compute on a rank's shard.

Sharded over an axis, their parameters are DTensors for storage, the forward uses local shards, and activations are
plain tensors. Column and row follow Shoeybi et al. 2019 (Megatron-LM), sequence parallelism Korthikanti et al. 2022.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dtk.parallel.collectives import Axis, copy, gather, join, reduce, scatter_sum

Role = Literal["column", "row", "vocabulary", "replicated", "whole", "expert"]
"""`replicated` parameters operate on activations that may be sharded along the sequence, `whole` ones never do;
rows of `expert` ones belong to experts, which tensor parallelism does not shard."""
_SEQUENCE = 1  # Dimension of activations [batch, sequence, width] that is sharded between the linear layers.


@dataclass(frozen=True, slots=True)
class Cut:
    """How the layers of a model are sharded."""

    axis: Axis
    sequence: bool
    """Whether activations outside attention and feed-forward are sharded along the sequence instead of replicated."""


class Cuttable(nn.Module):
    """Base of modules whose computation tensor parallelism may shard; not sharded while `cut` is None."""

    cut: Cut | None = None

    def enter(self, x: Tensor) -> Tensor:
        """Gather activations for column-parallel layers, under autocast in their compute dtype."""
        if self.cut is None:
            return x
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return gather(x, _SEQUENCE, self.cut.axis) if self.cut.sequence else copy(x, self.cut.axis)

    def leave(self, x: Tensor) -> Tensor:
        """Sum the partial results of row-parallel layers."""
        if self.cut is None:
            return x
        return scatter_sum(x, _SEQUENCE, self.cut.axis) if self.cut.sequence else reduce(x, self.cut.axis)

    def joined(self, x: Tensor) -> Tensor:
        """Return activations from outside attention whole along the sequence, for replicated computation."""
        return x if self.cut is None or not self.cut.sequence else join(x, _SEQUENCE, self.cut.axis)

    def own(self, positions: Tensor) -> Tensor:
        """Return the positions [sequence] of this rank's activations outside attention and feed-forward."""
        whole = self.cut is None or not self.cut.sequence
        return positions if whole else positions.chunk(self.cut.axis.size)[self.cut.axis.rank]  # type: ignore[union-attr]


class SelfAttention(Cuttable):
    """Attention of every token over its own sequence, whose tokens context parallelism may split over ranks."""

    core: Callable[[Tensor, Tensor, Tensor, float], Tensor] | None = None
    """Causal attention of this rank's queries to the keys and values of all ranks, and dropout; None if not split."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, *, causal: bool = True
    ) -> Tensor:
        """Map queries [batch, heads, sequence, head width] to the same shape; `k` and `v` may have fewer, shared heads.

        `mask` is bool, broadcastable to [batch, heads, sequence, sequence]; true = attended. `causal`: no later tokens.
        """
        if self.core is not None:
            return self.core(q, k, v, dropout)
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, enable_gqa=grouped)


def local_part(parameter: Tensor) -> Tensor:
    """Return the local part of a parameter for computation; gradients flow back to the parameter."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def whole_sequence(tokens: Tensor, longest: int | None = None) -> Tensor:
    """Return the positions [sequence] of token ids [batch, sequence] that are a whole sequence.

    At most `longest`: too few positions fail cleanly, whereas one out of range would be a device-side assert on CUDA.
    """
    length = tokens.shape[1] if longest is None else min(tokens.shape[1], longest)
    return torch.arange(length, device=tokens.device)


class Column(nn.Linear):
    """Column-parallel linear layer: each rank has some of the rows of the weight and of the bias."""

    role: ClassVar[Role] = "column"

    def forward(self, x: Tensor) -> Tensor:
        """Map whole inputs [..., in] to this rank's outputs [..., out / ranks]."""
        return F.linear(x, local_part(self.weight), None if self.bias is None else local_part(self.bias))


class Row(Cuttable, nn.Linear):
    """Row-parallel linear layer: each rank has some of the columns of the weight, and the whole bias."""

    role: ClassVar[Role] = "row"

    def forward(self, x: Tensor) -> Tensor:
        """Map this rank's inputs [batch, sequence, in / ranks] to outputs that are summed over the ranks."""
        bias = None if self.bias is None else local_part(self.bias)
        if self.cut is None:
            return F.linear(x, local_part(self.weight), bias)
        y = self.leave(F.linear(x, local_part(self.weight)))
        return y if bias is None else y + bias


class TokenEmbedding(Cuttable, nn.Embedding):
    """Token embedding, which may be tied to the output projection; each rank has some of the vocabulary."""

    role: ClassVar[Role] = "vocabulary"

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [batch, sequence] to [batch, sequence, width]."""
        weight = local_part(self.weight)
        if self.cut is None:
            return F.embedding(tokens, weight)
        mine = tokens - self.cut.axis.rank * weight.shape[0]
        elsewhere = (mine < 0) | (mine >= weight.shape[0])
        x = F.embedding(mine.masked_fill(elsewhere, 0), weight)
        return self.leave(x.masked_fill(elsewhere.unsqueeze(-1), 0.0))

    def logits(self, x: Tensor) -> Tensor:
        """Map [batch, sequence, width] to the logits of this rank's part of the vocabulary."""
        return F.linear(self.enter(x), local_part(self.weight))


class Head(Cuttable, nn.Linear):
    """Untied output projection; each rank has some of the vocabulary."""

    role: ClassVar[Role] = "vocabulary"

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, sequence, width] to the logits of this rank's part of the vocabulary."""
        return F.linear(self.enter(x), local_part(self.weight))


class Whole(Column):
    """Linear layer that every rank holds whole and applies to whole activations."""

    role: ClassVar[Role] = "whole"


class PositionEmbedding(nn.Embedding):
    """Learned positions, replicated on every rank."""

    role: ClassVar[Role] = "replicated"

    def forward(self, positions: Tensor) -> Tensor:
        """Map positions [sequence] to [sequence, width]."""
        return F.embedding(positions, local_part(self.weight))


class LayerNorm(nn.LayerNorm):
    """LayerNorm, replicated on every rank."""

    role: ClassVar[Role] = "replicated"

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., width]."""
        return F.layer_norm(x, self.normalized_shape, local_part(self.weight), local_part(self.bias), self.eps)


class RMSNorm(nn.RMSNorm):
    """RMSNorm, replicated on every rank."""

    role: ClassVar[Role] = "replicated"

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., width]."""
        assert self.weight is not None
        return F.rms_norm(x, self.normalized_shape, local_part(self.weight), self.eps)
