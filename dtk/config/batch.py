"""Resolves `train.micro_batch_size=0` once the number of ranks is known, and says what fits where nothing does."""

import dataclasses

from diagnostics.contract.formatting import counted
from dtk.config.compose import Composed
from dtk.config.strict import to_plain
from dtk.errors import DtkError

LARGEST = 4
"""A chosen micro-batch is at most this: small enough for a laptop, and accumulation makes up the rest."""


def fewer_ranks(total: int, micro: int, world_size: int) -> str:
    """What to type where the global batch must stay, as in a resumed run: fewer ranks always fit.

    Args:
        total: samples in the global batch.
        micro: samples in a micro-batch; chosen anew where it does not fit.
        world_size: ranks that do not fit.
    """
    ranks = max(n for n in range(1, world_size + 1) if total % n == 0)
    again = " train.micro_batch_size=0" if total % (ranks * micro) else ""
    return f"the global batch cannot change in a resumed run, so use fewer ranks: launcher.nproc={ranks}{again}"


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
        fix = f"use train.global_batch_size={' or '.join(nearest)}"
        raise DtkError(
            f"train.global_batch_size={train.global_batch_size} does not divide over {counted(world_size, 'rank')}",
            fix=fewer_ranks(train.global_batch_size, 1, world_size) if composed.config.resume else fix,
        )
    fits = [size for size in range(1, LARGEST + 1) if share % size == 0]
    settled = dataclasses.replace(train, micro_batch_size=max(fits))
    config = dataclasses.replace(composed.config, train=settled)
    return dataclasses.replace(composed, config=config, plain=to_plain(config))
