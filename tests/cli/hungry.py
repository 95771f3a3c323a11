"""A model whose forward pass asks for more memory than there is when a micro-batch has too many samples."""

import torch
from torch import Tensor, nn


class Hungry(nn.Module):
    """Embedding and head over bytes.

    Args:
        most: samples of which more do not fit, whatever the machine has.
        sample_gib: memory that each sample takes for a moment; never touched, so a limit of addresses alone sees it.
    """

    def __init__(self, most: int = 1 << 40, sample_gib: int = 0) -> None:
        super().__init__()
        self.most = most
        self.sample_gib = sample_gib
        self.embedding = nn.Embedding(256, 16)
        self.head = nn.Linear(16, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        samples = tokens.shape[0]
        gib = 1 << 20 if samples > self.most else samples * self.sample_gib
        torch.empty(gib << 30, dtype=torch.uint8, device=tokens.device)
        return self.head(self.embedding(tokens))
