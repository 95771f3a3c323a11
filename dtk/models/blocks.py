"""Modules that the GPT and the encoder share: the pre-norm block with biases, embeddings and the final norm."""

import torch.nn.functional as F
from torch import Tensor, nn

from dtk.config.schema import EncoderConfig, GPTConfig
from dtk.models import layers
from dtk.models.declared import Initial, transformer_initial
from dtk.models.layers import Column, Cuttable, LayerNorm, Row, SelfAttention
from dtk.parallel.placement import Piece


class Attention(SelfAttention):
    """Multi-head self-attention with one fused projection for queries, keys and values, grouped by head."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.head_width = width // heads
        self.dropout = dropout
        self.causal = causal
        self.qkv = Column(width, 3 * width)
        self.projection = Row(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the normalised residual stream [batch, sequence, width] to the same shape.

        `mask` is bool and broadcastable to [batch, heads, sequence, sequence]; true = may be attended.
        """
        fused = self.qkv(self.enter(x)).unflatten(2, (-1, PARTS, self.head_width))
        q, k, v = (part.transpose(1, 2) for part in fused.unbind(3))
        dropout = self.dropout if self.training else 0.0
        y = self.attend(q, k, v, mask, dropout, causal=self.causal)
        return F.dropout(self.projection(y.transpose(1, 2).flatten(2)), self.dropout, self.training)


class MLP(Cuttable):
    """Two linear layers around tanh-approximated GELU (Hendrycks & Gimpel 2016); 4 times as wide inside."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.up = Column(width, 4 * width)
        self.down = Row(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same shape."""
        return F.dropout(self.down(F.gelu(self.up(self.enter(x)), approximate="tanh")), self.dropout, self.training)


class Block(nn.Module):
    """Attention and a feed-forward network, each after a LayerNorm and with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal)
        self.mlp_norm = LayerNorm(width)
        self.mlp = MLP(width, dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the residual stream [batch, sequence, width] to the same shape; `mask` as in `Attention`."""
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class Transformer(Cuttable):
    """Embeddings with learned positions, blocks and a final norm; subclasses add the output."""

    before = ("token_embedding", "position_embedding")

    def __init__(self, config: GPTConfig | EncoderConfig, causal: bool) -> None:
        super().__init__()
        self.fused_heads = config.heads
        self.layers, self.dropout = config.layers, config.dropout
        self.token_embedding = layers.TokenEmbedding(config.vocab_size, config.width)
        self.position_embedding = layers.PositionEmbedding(config.context_length, config.width)
        sizes = config.width, config.heads, config.dropout
        self.blocks = nn.ModuleList(Block(*sizes, causal) for _ in range(config.layers))
        self.final_norm = LayerNorm(config.width)

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Map token ids [batch, sequence] to [batch, sequence, width]; without positions they are a whole sequence."""
        if positions is None:
            positions = layers.whole_sequence(tokens, self.position_embedding.num_embeddings)
        x = self.token_embedding(tokens) + self.position_embedding(self.own(positions))
        return F.dropout(x, self.dropout, self.training)

    def initial(self, name: str) -> Initial:
        """Return the initialization of the parameter with this qualified name."""
        return transformer_initial(name, self.layers)


PARTS = 3  # Number of parts of the fused projection: queries, keys and values.


def by_head(logical: Tensor, heads: int) -> Tensor:
    """Reorder logical rows to the stored order, [heads, (query, key, value), head_width]."""
    return logical.reshape(PARTS, heads, -1, *logical.shape[1:]).transpose(0, 1).flatten(0, 2)


def by_part(stored: Tensor, heads: int) -> Tensor:
    """Reorder stored rows to the logical order, [queries | keys | values] of [heads, head_width] each."""
    return stored.reshape(heads, PARTS, -1, *stored.shape[1:]).transpose(0, 1).flatten(0, 2)


def runs(piece: Piece, rows: int, heads: int | None) -> list[tuple[int, int, int]]:
    """Return (first row in the piece, first logical row, number) of rows consecutive in both, in logical order.

    The whole parameter has `rows`. `heads` are those of a fused projection; None if it is stored in the logical order.
    """
    first, count = piece.offset[0], piece.size[0]
    if heads is None:
        return [(0, first, count)]
    width = rows // (PARTS * heads)
    parts = []
    for block in range(first // width, -(-(first + count) // width) if count else 0):
        head, part = divmod(block, PARTS)
        begin, end = max(first, block * width), min(first + count, (block + 1) * width)
        parts.append((begin - first, (part * heads + head) * width + begin - block * width, end - begin))
    return sorted(parts, key=lambda run: run[1])
