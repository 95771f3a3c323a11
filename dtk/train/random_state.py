"""The random state of a micro-batch: a function of its position in the run, so that a resumed run draws the same."""

import random

import numpy as np
import torch

from dtk.data.sampler import STEP, mix64


def seed_random(seed: int, step: int, dp_rank: int, micro_batch: int) -> None:
    """Seed Python's, numpy's and torch's generators (CPU and CUDA) for the forward pass of one micro-batch.

    A resumed run therefore draws the same random numbers (dropout) again. Ranks with the same data-parallel coordinate
    (tensor or pipeline parallel) draw the same numbers, so that their replicas stay equal.
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in (seed, step, dp_rank, micro_batch):
        state = mix64(state ^ mix64(np.array([part], dtype=np.uint64)) + STEP)
    value = int(state[0])
    random.seed(value)
    np.random.seed(value % 2**32)
    # Not torch.manual_seed: for each kind of device that is not in use it keeps a formatted stack, at 0.15 ms per call.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
