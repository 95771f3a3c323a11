"""Resolves `train.micro_batch_size=0` once the number of ranks is known."""

import dataclasses

from dtk.config.compose import Composed
from dtk.config.strict import to_plain

LARGEST = 4
"""A chosen micro-batch is at most this: small enough for a laptop, and accumulation makes up the rest."""


def settle(composed: Composed, world_size: int) -> Composed:
    """Choose the largest micro-batch up to `LARGEST` that divides the global batch over the ranks.

    A batch that cannot be divided is left as 1 for `check` to explain.
    """
    train = composed.config.train
    if train.micro_batch_size:
        return composed
    share = train.global_batch_size // world_size
    fits = [size for size in range(1, LARGEST + 1) if share and share % size == 0]
    settled = dataclasses.replace(train, micro_batch_size=max(fits, default=1))
    config = dataclasses.replace(composed.config, train=settled)
    return dataclasses.replace(composed, config=config, plain=to_plain(config))
