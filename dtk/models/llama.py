"""Llama (Touvron et al. 2023): RMSNorm, rotary positions, SwiGLU and grouped-query attention, no biases."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtk.config.schema import LlamaConfig
from dtk.models.declared import Initial, training_flops_per_token, transformer_initial
from dtk.models.layers import Column, Cuttable, Head, RMSNorm, Row, SelfAttention, TokenEmbedding, whole_sequence


def rotary_table(positions: Tensor, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return RoPE's (Su et al. 2021) float32 cos and sin [sequence, head_width / 2]: angle = position / theta^(2i/d).

    Computed in each forward, as a buffer would lose its values on the meta device.
    """
    frequency = theta ** (-torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32) / head_width)
    angle = torch.outer(positions.float(), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + d/2) of queries or keys [batch, heads, sequence, d] by the angles of their positions."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class LlamaAttention(SelfAttention):
    """Causal attention in which `heads / kv_heads` query heads share one key and value head (Ainslie et al. 2023)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.q = Column(config.width, config.width, bias=False)
        self.k = Column(config.width, config.kv_heads * self.head_width, bias=False)
        self.v = Column(config.width, config.kv_heads * self.head_width, bias=False)
        self.projection = Row(config.width, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [batch, sequence, width] to the same shape; `cos` and `sin` as returned by `rotary_table`."""
        x = self.enter(x)
        q, k, v = (layer(x).unflatten(2, (-1, self.head_width)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return self.projection(self.attend(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class LlamaMLP(Cuttable):
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = Column(width, inner, bias=False)
        self.up = Column(width, inner, bias=False)
        self.down = Row(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same shape."""
        x = self.enter(x)
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class LlamaBlock(nn.Module):
    """Attention and a feed-forward network, each after an RMSNorm and with a residual connection."""

    def __init__(self, config: LlamaConfig, mlp: nn.Module | None = None) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, eps=config.norm_eps)
        self.attention = LlamaAttention(config)
        self.mlp_norm = RMSNorm(config.width, eps=config.norm_eps)
        self.mlp = mlp or LlamaMLP(config.width, config.ffn_width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map the residual stream [batch, sequence, width] to the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Causal language model; `tie_weights` ties the token embedding to the output projection."""

    before = ("token_embedding",)

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.after = ("final_norm", "token_embedding" if config.tie_weights else "head")
        self.token_embedding = TokenEmbedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(self.block(config, i) for i in range(config.layers))
        self.final_norm = RMSNorm(config.width, eps=config.norm_eps)
        self.head = None if config.tie_weights else Head(config.width, config.vocab_size, bias=False)

    def block(self, config: Any, number: int) -> nn.Module:
        """Build the block with this index."""
        return LlamaBlock(config)

    def forward(self, tokens: Tensor, positions: Tensor | None = None, stream: Tensor | None = None) -> Tensor:
        """Return the logits [batch, sequence, vocab] of token ids [batch, sequence]; arguments as `GPT.forward`."""
        cos, sin = self.rotary(tokens, positions)
        x = self.token_embedding(tokens) if stream is None else stream
        for block in self.blocks:
            x = block(x, cos, sin)
        return x if self.final_norm is None else self.logits(x)

    def rotary(self, tokens: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return `rotary_table` of these positions, by default of whole sequences."""
        positions = whole_sequence(tokens) if positions is None else positions
        return rotary_table(positions, self.config.width // self.config.heads, self.config.rope_theta)

    def logits(self, x: Tensor) -> Tensor:
        """Map the output of the last block to logits."""
        x = self.final_norm(x)
        return self.token_embedding.logits(x) if self.head is None else self.head(x)

    def initial(self, name: str) -> Initial:
        """Return the initialization of the parameter with this qualified name."""
        return transformer_initial(name, self.config.layers)

    def flops_per_token(self, sequence_length: int) -> int:
        """Return the training FLOPs per token (see `training_flops_per_token`), without an untied token embedding."""
        counted = sum(p.numel() for p in self.parameters())
        if self.head is not None:
            counted -= self.token_embedding.weight.numel()
        return training_flops_per_token(counted, self.config.layers, self.config.width, sequence_length)
