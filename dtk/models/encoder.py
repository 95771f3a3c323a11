"""BERT-like bidirectional encoder (Devlin et al. 2018) with a classification head. Unlike BERT it has norms before each
sub-layer (Xiong et al. 2020), to train without a long warm-up, and the head reads the mean over the tokens.
"""

from torch import Tensor

from dtk.config.schema import EncoderConfig
from dtk.models.blocks import Transformer
from dtk.models.flops import training_flops_per_token
from dtk.models.layers import Whole

PADDING_ID = 0
"""Token id that fills a sample up to the sequence length. It is neither attended nor pooled."""


class Encoder(Transformer):
    """Text classifier. The token id 0 is padding: it has no influence on the logits."""

    after = ("final_norm", "head")

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, causal=False)
        self.config = config
        self.head = Whole(config.width, config.classes)

    def forward(self, tokens: Tensor, stream: Tensor | None = None) -> Tensor:
        """Return the logits [batch, classes] of token ids [batch, sequence]; sequence <= context_length.

        Args:
            tokens: int64.
            stream: what the pipeline stage before returned; None on the first. A stage before the last returns it.
        """
        valid = tokens != PADDING_ID
        # A sample of padding alone attends to itself: kernels disagree on rows with nothing to attend (0 or NaN).
        mask = (valid | ~valid.any(dim=1, keepdim=True))[:, None, None, :]
        x = self.embed(tokens) if stream is None else stream
        for block in self.blocks:
            x = block(x, mask)
        if self.final_norm is None:
            return x
        weight = valid.unsqueeze(2).to(x.dtype)
        # A sample of padding alone has no tokens to average: its mean is 0, not NaN.
        mean = (self.joined(self.final_norm(x)) * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
        return self.head(mean)  # type: ignore[no-any-return]

    def flops_per_token(self, sequence_length: int) -> int:
        """Return the training FLOPs per token, padding included (see `training_flops_per_token`).

        Neither lookup table is counted, nor the head: it runs once per sample, not per token.
        """
        parts = (self.blocks, self.final_norm)
        counted = sum(p.numel() for part in parts for p in part.parameters())
        return training_flops_per_token(counted, self.config.layers, self.config.width, sequence_length)
