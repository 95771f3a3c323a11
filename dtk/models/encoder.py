"""BERT-like bidirectional encoder (Devlin et al. 2018) with a classification head. Unlike BERT it normalizes before
each sub-layer (Xiong et al. 2020), to train without a long warm-up, and the head reads the mean over the tokens.
"""

from torch import Tensor

from dtk.config.schema import EncoderConfig
from dtk.models.blocks import Transformer
from dtk.models.declared import training_flops_per_token
from dtk.models.layers import Whole

PADDING_ID = 0  # Token id that pads a sample to the sequence length. It is excluded from attention and pooling.


class Encoder(Transformer):
    """Text classifier. The token id 0 is padding: it does not affect the logits."""

    after = ("final_norm", "head")

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, causal=False)
        self.config = config
        self.head = Whole(config.width, config.classes)

    def forward(self, tokens: Tensor, stream: Tensor | None = None) -> Tensor:
        """Return the logits [batch, classes] of token ids [batch, sequence]; sequence <= context_length.

        `tokens` are int64; `stream` is the output of the previous pipeline stage, None on the first. Stages before the
        last return it.
        """
        valid = tokens != PADDING_ID
        # A sample of only padding attends to itself: kernels disagree on rows without anything to attend to (0 or NaN).
        mask = (valid | ~valid.any(dim=1, keepdim=True))[:, None, None, :]
        x = self.embed(tokens) if stream is None else stream
        for block in self.blocks:
            x = block(x, mask)
        if self.final_norm is None:
            return x
        weight = valid.unsqueeze(2).to(x.dtype)
        # A sample of only padding has no tokens to average: its mean is 0, not NaN.
        mean = (self.joined(self.final_norm(x)) * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
        return self.head(mean)  # type: ignore[no-any-return]

    def flops_per_token(self, sequence_length: int) -> int:
        """Return the training FLOPs per token, padding included (see `training_flops_per_token`).

        Lookup tables are not counted, nor is the head, which runs once per sample, not per token.
        """
        parts = (self.blocks, self.final_norm)
        counted = sum(p.numel() for part in parts for p in part.parameters())
        return training_flops_per_token(counted, self.config.layers, self.config.width, sequence_length)
