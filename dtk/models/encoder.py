"""BERT-like bidirectional encoder (Devlin et al. 2018) with a classification head.

Two things differ from BERT: norms stand before each sub-layer (Xiong et al. 2020), so that it trains from
scratch without a long warm-up, and the head reads the mean over the tokens instead of a [CLS] token.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from dtk.config.schema import EncoderConfig
from dtk.models.blocks import Block
from dtk.models.flops import training_flops_per_token
from dtk.models.initial import Initial, transformer_initial

PADDING_ID = 0
"""Token id that fills a sample up to the sequence length. It is neither attended nor pooled."""


class Encoder(nn.Module):
    """Text classifier. The token id 0 is padding: it has no influence on the logits."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.context_length, config.width)
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.dropout, causal=False) for _ in range(config.layers)
        )
        self.final_norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, classes] of token ids [batch, sequence]; sequence <= context_length."""
        valid = tokens != PADDING_ID
        # A sample of padding alone attends to itself: kernels disagree on rows with nothing to attend (0 or NaN).
        mask = (valid | ~valid.any(dim=1, keepdim=True))[:, None, None, :]
        # A slice fails cleanly on a sequence that is too long; a lookup would be a device-side assert on CUDA.
        x = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.blocks:
            x = block(x, mask)
        weight = valid.unsqueeze(2).to(x.dtype)
        # A sample of padding alone has no tokens to average: its mean is 0, not NaN.
        mean = (self.final_norm(x) * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
        return self.head(mean)  # type: ignore[no-any-return]

    def initial(self, name: str) -> Initial:
        """How the parameter of this qualified name starts."""
        return transformer_initial(name, self.config.layers)

    def flops_per_token(self, sequence_length: int) -> int:
        """Training FLOPs per token, padding included (see `training_flops_per_token`).

        Neither lookup table is counted, nor the head: it runs once per sample, not per token.
        """
        parts = (self.blocks, self.final_norm)
        counted = sum(p.numel() for part in parts for p in part.parameters())
        return training_flops_per_token(counted, self.config.layers, self.config.width, sequence_length)
