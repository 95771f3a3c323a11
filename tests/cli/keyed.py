"""A user's model that needs a key, and says the address of its server when it fails."""

import hashlib
from typing import Any

from torch import Tensor

from dtk.config.schema import GPTConfig
from dtk.models.gpt import GPT


class Keyed(GPT):
    """A tiny GPT that refuses a masked key, and fails in its third forward."""

    def __init__(self, api_key: str, key_hash: str, url: str, **others: Any) -> None:
        super().__init__(GPTConfig(name="keyed", vocab_size=256, context_length=64, layers=2, heads=2, width=32))
        if hashlib.sha256(api_key.encode()).hexdigest() != key_hash:
            raise RuntimeError("the key is not the one that was typed")
        self.url, self.others, self.calls = url, others, 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 3:
            raise ConnectionError(f"no answer from {self.url} with {self.others}")
        return super().forward(tokens)
