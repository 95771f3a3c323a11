"""Llama (Touvron et al. 2023): RMSNorm, rotary positions, SwiGLU and grouped-query attention, no biases."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtk.config.schema import LlamaConfig
from dtk.models.flops import training_flops_per_token
from dtk.models.initial import Initial, transformer_initial


def rotary_table(length: int, head_width: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, head_width / 2], float32, of RoPE (Su et al. 2021): angle = position / theta^(2i/d).

    Computed in each forward pass rather than kept: a buffer would lose its values on the meta device.
    """
    frequency = theta ** (-torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width)
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + d/2) of queries or keys [batch, heads, sequence, d] by their position's angle."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class LlamaAttention(nn.Module):
    """Causal attention in which `heads / kv_heads` query heads share one key and value head (Ainslie et al. 2023)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.grouped = config.heads != config.kv_heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * self.head_width, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * self.head_width, bias=False)
        self.projection = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [batch, sequence, width] to the same shape; tables as of `rotary_table`."""
        q, k, v = (layer(x).unflatten(2, (-1, self.head_width)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.projection(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class LlamaMLP(nn.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.ffn_width, bias=False)
        self.up = nn.Linear(config.width, config.ffn_width, bias=False)
        self.down = nn.Linear(config.ffn_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same shape."""
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class LlamaBlock(nn.Module):
    """Attention, then a feed-forward network, each behind an RMSNorm and added to its input."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attention = LlamaAttention(config)
        self.mlp_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map the residual stream [batch, sequence, width] to the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Causal language model; with `tie_weights` the token embedding is the output projection too."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config.layers))
        self.final_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.head = None if config.tie_weights else nn.Linear(config.width, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, sequence, vocab] of token ids [batch, sequence]."""
        config = self.config
        cos, sin = rotary_table(tokens.shape[1], config.width // config.heads, config.rope_theta, tokens.device)
        x = self.token_embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        x = self.final_norm(x)
        return F.linear(x, self.token_embedding.weight) if self.head is None else self.head(x)

    def initial(self, name: str) -> Initial:
        """How the parameter of this qualified name starts."""
        return transformer_initial(name, self.config.layers)

    def flops_per_token(self, sequence_length: int) -> int:
        """Training FLOPs per token (see `training_flops_per_token`); an untied token table is not counted."""
        counted = sum(p.numel() for p in self.parameters())
        if self.head is not None:
            counted -= self.token_embedding.weight.numel()
        return training_flops_per_token(counted, self.config.layers, self.config.width, sequence_length)
