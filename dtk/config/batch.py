"""Resolves `train.micro_batch_size=0` once the number of ranks is known."""

import dataclasses

from dtk.config.compose import Composed
from dtk.config.strict import to_plain
from dtk.errors import DtkError

LARGEST = 4
"""A chosen micro-batch is at most this: small enough for a laptop, and accumulation makes up the rest."""


def settle(composed: Composed, world_size: int) -> Composed:
    """Choose the largest micro-batch up to `LARGEST` that divides the global batch over the ranks.

    Raises:
        DtkError: the global batch does not divide over the ranks.
    """
    train = composed.config.train
    if train.micro_batch_size:
        return composed
    share, rest = divmod(train.global_batch_size, world_size)
    if rest or share < 1:
        nearest = [str(n * world_size) for n in (share, share + 1) if n]
        raise DtkError(
            f"train.global_batch_size={train.global_batch_size} does not divide over {world_size} ranks",
            fix=f"use train.global_batch_size={' or '.join(nearest)}",
        )
    fits = [size for size in range(1, LARGEST + 1) if share % size == 0]
    settled = dataclasses.replace(train, micro_batch_size=max(fits))
    config = dataclasses.replace(composed.config, train=settled)
    return dataclasses.replace(composed, config=config, plain=to_plain(config))
