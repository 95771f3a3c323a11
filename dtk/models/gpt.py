"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"), which computes the same function
as Hugging Face's GPT2LMHeadModel; names and layout of the weights differ, `dtk.models.hf` converts them.
"""

from torch import Tensor

from dtk.config.schema import GPTConfig
from dtk.models.blocks import Transformer
from dtk.models.declared import training_flops_per_token


class GPT(Transformer):
    """Causal language model with learned positions; the token embedding is tied to the output projection."""

    after = ("final_norm", "token_embedding")

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config, causal=True)
        self.config = config

    def forward(self, tokens: Tensor, positions: Tensor | None = None, stream: Tensor | None = None) -> Tensor:
        """Return the logits [batch, sequence, vocab] of token ids [batch, sequence]; sequence <= context_length.

        `tokens` and `positions` [sequence] are int64; without positions it is a whole sequence. `stream` is the output
        of the previous pipeline stage, None on the first. Stages before the last return it.
        """
        x = self.embed(tokens, positions) if stream is None else stream
        for block in self.blocks:
            x = block(x)
        return x if self.final_norm is None else self.token_embedding.logits(self.final_norm(x))

    def flops_per_token(self, sequence_length: int) -> int:
        """Return the training FLOPs per token (see `training_flops_per_token`); the position table is not counted."""
        counted = sum(p.numel() for p in self.parameters()) - self.position_embedding.weight.numel()
        return training_flops_per_token(counted, self.config.layers, self.config.width, sequence_length)
