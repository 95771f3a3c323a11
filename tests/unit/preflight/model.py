"""A model that reads its own values: the slightest difference between ranks sends them different ways."""

import torch
from torch import Tensor, nn


class Reads(nn.Module):
    def __init__(self, vocab_size: int = 256, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.first(self.embedding(tokens))
        digits = int(x.double().abs().sum().item() * 1e9)
        for _ in range(digits % 4):
            x = torch.relu(self.second(x))
        return self.head(x)  # type: ignore[no-any-return]
