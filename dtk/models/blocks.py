"""The pre-norm transformer block with biases that the GPT and the encoder share.

Owns attention, feed-forward network and residual structure of one block; knows neither embeddings nor heads.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention with one fused projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.head_width = width // heads
        self.dropout = dropout
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [batch, sequence, width] to the same shape.

        Args:
            x: the normalised residual stream.
            mask: bool, broadcastable to [batch, heads, sequence, sequence]; true = may be attended.
        """
        q, k, v = (part.unflatten(2, (-1, self.head_width)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=self.causal)
        return F.dropout(self.projection(y.transpose(1, 2).flatten(2)), self.dropout, self.training)


class MLP(nn.Module):
    """Two linear layers around GELU in its tanh form (Hendrycks & Gimpel 2016), 4 times as wide inside."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same shape."""
        return F.dropout(self.down(F.gelu(self.up(x), approximate="tanh")), self.dropout, self.training)


class Block(nn.Module):
    """Attention, then a feed-forward network, each behind a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the residual stream [batch, sequence, width] to the same shape; `mask` as in `Attention`."""
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]
