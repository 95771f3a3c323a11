"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

Computes what Hugging Face's GPT2LMHeadModel computes; names and layout of the weights are dtk's own,
`dtk.models.hf` translates.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from dtk.config.schema import GPTConfig
from dtk.models.blocks import Block
from dtk.models.flops import training_flops_per_token
from dtk.models.initial import Initial, transformer_initial


class GPT(nn.Module):
    """Causal language model with learned positions; the token embedding is the output projection too."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.context_length, config.width)
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.dropout, causal=True) for _ in range(config.layers)
        )
        self.final_norm = nn.LayerNorm(config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, sequence, vocab] of token ids [batch, sequence]; sequence <= context_length."""
        # A slice fails cleanly on a sequence that is too long; a lookup would be a device-side assert on CUDA.
        x = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.final_norm(x), self.token_embedding.weight)

    def initial(self, name: str) -> Initial:
        """How the parameter of this qualified name starts."""
        return transformer_initial(name, self.config.layers)

    def flops_per_token(self, sequence_length: int) -> int:
        """Training FLOPs per token (see `training_flops_per_token`); the position table is not counted."""
        counted = sum(p.numel() for p in self.parameters()) - self.position_embedding.weight.numel()
        return training_flops_per_token(counted, self.config.layers, self.config.width, sequence_length)
