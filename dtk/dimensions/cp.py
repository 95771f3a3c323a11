"""Context parallel: each sequence is split over the ranks of `cp`, which communicate in attention only. `ulysses`
(Jacobs et al. 2023) exchanges tokens for heads and back; `ring` keys and values in a ring (`parallel.ring_attention`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from diagnostics.contract.mesh import Mesh
from dtk.sharding.declared import ITEM_BYTES, Collective

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dtk.config.schema import Config
    from dtk.data.dataset import Batch
    from dtk.parallel.collectives import Axis

Method = Literal["ring", "ulysses"]


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens of each sequence that a rank has."""

    axis: Axis
    method: Method

    def own(self, batch: Batch) -> Batch:
        """Return this rank's part of a batch of whole sequences."""
        return replace(batch, inputs=self._cut(batch.inputs, 1), targets=self._cut(batch.targets, 1))

    def positions(self, batch: Batch) -> Tensor:
        """Return the positions of those tokens in their sequences, int64 [part]."""
        import torch

        return self._cut(torch.arange(batch.inputs.shape[1]), 0)

    def _cut(self, x: Tensor, dim: int) -> Tensor:
        import torch

        rank, ranks = self.axis.rank, self.axis.size
        if self.method == "ulysses":
            return x.chunk(ranks, dim)[rank].contiguous()
        parts = x.chunk(2 * ranks, dim)
        return torch.cat((parts[rank], parts[-1 - rank]), dim)


def spread_attention(model: nn.Module, part: Part) -> None:
    """Make the attention of a model, and the load balancing of its experts, communicate over all `cp` ranks."""
    from dtk.models.layers import SelfAttention
    from dtk.models.moe import MixtureMLP

    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.core = partial(_ulysses if part.method == "ulysses" else _ring, part.axis)
        elif isinstance(module, MixtureMLP):
            module.context = part.axis


def _ring(axis: Axis, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    from dtk.parallel.ring_attention import ring_attention

    return ring_attention(q, k, v, axis)


def _ulysses(axis: Axis, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from dtk.parallel.collectives import exchange

    grouped = q.shape[1] != k.shape[1]
    q = exchange(q, 1, 2, axis)
    k, v = exchange(torch.stack((k, v)), 2, 3, axis)
    return exchange(scaled_dot_product_attention(q, k, v, None, dropout, True, enable_gqa=grouped), 2, 1, axis)


def declare(config: Config, mesh: Mesh, accumulation_steps: int, blocks: range | None = None) -> list[Collective]:
    """Return what ranks of a `cp` group send in a step; `blocks` are a stage's, None = the whole model."""
    if mesh.cp == 1:
        return []
    model, every = config.model, config.train.activation_checkpoint_every
    blocks = range(model.layers) if blocks is None else blocks
    backwards = accumulation_steps * len(blocks)
    forwards = backwards + accumulation_steps * (sum(i % every == 0 for i in blocks) if every else 0)
    queries = config.train.micro_batch_size * config.data.sequence_length // mesh.cp * model.width // mesh.tp
    both = 2 * queries * getattr(model, "kv_heads", model.heads) // model.heads
    item = ITEM_BYTES[config.precision.compute_dtype]
    if config.parallel.context == "ulysses":
        calls = forwards + backwards
        return [Collective("all_to_all", "cp", 3 * calls, calls * (2 * queries + both) * item)]
    # In backward their float32 gradients follow them and go one hop further.
    hops = mesh.cp - 1
    count = (forwards + backwards) * hops + backwards * mesh.cp
    size = ((forwards + backwards) * hops * item + backwards * mesh.cp * ITEM_BYTES["float32"]) * both
    return [Collective(op, "cp", count, size) for op in ("send", "recv")]
