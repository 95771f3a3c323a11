"""Mixture of experts: Llama's blocks with several feed-forward networks, some of which a router selects per token.

The top k of a softmax over all experts, normalized to sum to 1 (Shazeer et al. 2017; Jiang et al. 2024, Mixtral); a
single expert keeps its probability (Fedus et al. 2021, Switch). Tokens of a micro-batch compete only for a capacity.
"""

from collections.abc import Sequence
from itertools import chain
from math import ceil
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtk.config.schema import MoEConfig
from dtk.models.declared import training_flops_per_token
from dtk.models.layers import Cuttable, Role, local_part
from dtk.models.llama import Llama, LlamaBlock, LlamaMLP
from dtk.parallel.collectives import Axis, copy, exchange_counts, exchange_rows, reduce


class Answer(NamedTuple):
    """Output of the model in training."""

    logits: Tensor
    """Logits, or the input of the next pipeline stage."""
    auxiliary: Tensor
    """Weighted load-balancing and z loss, summed over blocks and tokens, to add to the summed cross-entropy."""
    loads: Tensor
    """int64 [blocks with experts, 2, experts]: tokens routed to each expert, and tokens that it accepted."""


class Experts(nn.Module):
    """SwiGLU experts with concatenated rows, in the order of the experts; each rank may hold some of them."""

    role: ClassVar[Role] = "expert"

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        rows = config.experts * config.expert_width
        self.gate = nn.Parameter(torch.empty(rows, config.width))
        self.up = nn.Parameter(torch.empty(rows, config.width))
        self.down = nn.Parameter(torch.empty(config.experts * config.width, config.expert_width))

    def forward(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Map [rows, width] to the same shape; the rank's first expert processes the first `sizes[0]` rows, etc."""
        weights = (local_part(each).chunk(len(sizes)) for each in (self.gate, self.up, self.down))
        each = zip(torch.split(x, list(sizes)), *weights, strict=True)
        return torch.cat([F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down) for x, gate, up, down in each])


class Router(nn.Linear):
    """Logits of every expert for every token, always in float32."""

    role: ClassVar[Role] = "replicated"

    def __init__(self, config: MoEConfig) -> None:
        super().__init__(config.width, config.experts, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to [..., experts]."""
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), local_part(self.weight).float())


class MixtureMLP(Cuttable):
    """Router, routed experts and shared experts. Processes a rank's own part of each sequence."""

    axis: Axis | None = None
    """Ranks that divide the experts; None if this rank has all. Set by `dtk.dimensions.ep`."""
    context: Axis | None = None
    """Ranks that divide the sequences, in addition to those of `cut`. Set by `dtk.dimensions.cp`."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config)
        self.experts = Experts(config)
        width = config.shared_experts * config.expert_width
        self.shared = LlamaMLP(config.width, width) if width else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, shaped like x [batch, sequence, width], the auxiliary loss, and the loads [2, experts]."""
        config, logits = self.config, self.router(x)
        probabilities = logits.softmax(-1)
        weights, chosen = probabilities.topk(config.experts_per_token)
        if config.experts_per_token > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        y, loads = self._route(x.flatten(0, 1), weights.flatten(0, 1), chosen.flatten(0, 1))
        y = y.view_as(x)
        if self.shared is not None:
            y = y + self.shared(x)
        # The load-balancing loss is per sequence (DeepSeek-AI 2024, "DeepSeek-V3", equations 17 to 20), as one per
        # batch would depend on the division of the batch; z loss: Zoph et al. 2022, "ST-MoE", equation 5.
        share = F.one_hot(chosen, config.experts).sum(2).float().mean(1) * (config.experts / config.experts_per_token)
        means = torch.stack((share, probabilities.mean(1)))
        for axis in (self.context, None if self.cut is None else self.cut.axis):
            if axis is not None:  # Loads of whole sequences; each rank's loss is that of its own tokens.
                means = reduce(copy(means, axis), axis) / axis.size
        balance = means.prod(0).sum() * chosen.shape[1]
        return y, config.balance_loss * balance + config.z_loss * logits.logsumexp(-1).square().sum(), loads

    def _route(self, x: Tensor, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the selected experts' outputs for x [tokens, width], and the loads."""
        config, tokens = self.config, len(x)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # The dtype of communication.
        first_choices_first = chosen.t().flatten()
        order = first_choices_first.argsort(stable=True)
        counts = F.one_hot(first_choices_first, config.experts).sum(0)
        taken = counts
        if config.capacity_factor is None or not self.training:
            result = self._experts(x[order % tokens], counts)[order.argsort()]
        else:
            capacity = ceil(config.capacity_factor * tokens * config.experts_per_token / config.experts)
            taken, slots = counts.clamp(max=capacity), config.experts * capacity
            place = torch.arange(len(order), device=x.device) - (counts.cumsum(0) - counts)[first_choices_first[order]]
            slot = torch.where(place < capacity, first_choices_first[order] * capacity + place, slots)
            # A row of zeros fills empty slots and is the output of tokens without a slot.
            source = torch.full((slots + 1,), tokens, device=x.device).scatter_(0, slot, order % tokens)[:slots]
            zeros = x.new_zeros(1, x.shape[1])
            result = self._experts(torch.cat((x, zeros))[source], [capacity] * config.experts)
            result = torch.cat((result, zeros.to(result.dtype)))[slot][order.argsort()]
        y = (weights.t().unsqueeze(-1).type_as(result) * result.view(-1, tokens, x.shape[1])).sum(0)
        return y, torch.stack((counts, taken))

    def _experts(self, rows: Tensor, counts: Tensor | list[int]) -> Tensor:
        """Send rows, sorted by expert, to the ranks that hold the experts, and return the experts' outputs."""
        if self.axis is None:
            sizes = counts if isinstance(counts, list) else read_counts(counts.view(1, 1, -1), len(rows), 0)[0][0]
            return self.experts(rows, sizes)  # type: ignore[no-any-return]
        ranks, home = self.axis.size, len(rows)
        if isinstance(counts, list):
            mine = [counts[: len(counts) // ranks]] * ranks
            sent = received = [len(rows) // ranks] * ranks
        else:
            for_ranks = counts.view(ranks, -1)
            both = torch.stack((for_ranks, exchange_counts(for_ranks, self.axis)))
            leaving, mine = read_counts(both, len(rows), self.axis.rank)
            sent, received = ([sum(each) for each in table] for table in (leaving, mine))
        arrived = exchange_rows(rows, sent, received, self.axis, home)
        by_expert = [sum(of_expert) for of_expert in zip(*mine, strict=True)]
        outputs = self.experts(_swapped(arrived, mine), by_expert)
        return exchange_rows(_swapped(outputs, list(zip(*mine, strict=True))), received, sent, self.axis, home)


def read_counts(counts: Tensor, rows: int, rank: int) -> list[list[list[int]]]:
    """Return the numbers of rows to send and receive as Python lists; synchronizes with the device.

    `counts` is int64 [1 or 2, ranks, experts of a rank]: this rank's rows for each expert, and each rank's rows for the
    experts of this one. This rank has `rows` in total, and is number `rank` of those that divide the experts.
    """
    return counts.tolist()  # type: ignore[no-any-return]


def even_counts(counts: Tensor, rows: int, rank: int) -> list[list[list[int]]]:
    """Return the result of `read_counts` for this many evenly routed rows per rank, for a simulation without values."""
    _, ranks, of_rank = counts.shape
    whole = [rows * (i + 1) // (ranks * of_rank) - rows * i // (ranks * of_rank) for i in range(ranks * of_rank)]
    sent = [whole[first : first + of_rank] for first in range(0, len(whole), of_rank)]
    return [sent, [sent[rank]] * ranks][: len(counts)]


def _swapped(rows: Tensor, sizes: Sequence[Sequence[int]]) -> Tensor:
    """Reorder rows grouped by (i, j), with `sizes[i][j]` rows each, to groups by (j, i)."""
    parts = torch.split(rows, list(chain(*sizes)))
    width = len(sizes[0])
    return torch.cat([parts[i * width + j] for j in range(width) for i in range(len(sizes))])


class MoEBlock(LlamaBlock):
    """Attention and experts, each after an RMSNorm and with a residual connection."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__(config, mlp=MixtureMLP(config))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Map the residual stream [batch, sequence, width] to the same shape; also return the loss and loads."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y, auxiliary, loads = self.mlp(self.mlp_norm(x))
        return x + y, auxiliary, loads


class MoE(Llama):
    """Causal language model; in training it also returns the auxiliary loss and the expert loads."""

    def block(self, config: MoEConfig, number: int) -> nn.Module:
        """Build the block with this index; the first blocks may be Llama's."""
        return MoEBlock(config) if number >= config.dense_layers else LlamaBlock(config)

    def forward(  # type: ignore[override]
        self, tokens: Tensor, positions: Tensor | None = None, stream: Tensor | None = None
    ) -> Tensor | Answer:
        """Return the result of `Llama.forward`, in training as an `Answer` if the model has experts."""
        cos, sin = self.rotary(tokens, positions)
        x, auxiliary, loads = self.token_embedding(tokens) if stream is None else stream, [], []
        for block in self.blocks:
            result = block(x, cos, sin)
            if isinstance(result, tuple):
                x, loss, load = result
                auxiliary.append(loss)
                loads.append(load)
            else:
                x = result
        output = x if self.final_norm is None else self.logits(x)
        answers = self.training and auxiliary  # A pipeline stage may have no experts.
        return Answer(output, torch.stack(auxiliary).sum(), torch.stack(loads)) if answers else output

    def flops_per_token(self, sequence_length: int) -> int:
        """Return the training FLOPs per token (see `training_flops_per_token`), of a token's active experts only."""
        config = self.config
        assert isinstance(config, MoEConfig)
        unused = training_flops_per_token(config.idle_parameters, 0, config.width, 0)
        return super().flops_per_token(sequence_length) - unused
