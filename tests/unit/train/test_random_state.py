"""seed_random: a function of the place in the run, and of every part of it."""

import itertools
import random

import numpy as np
import torch

from dtk.train.random_state import seed_random
from tests.work import calls_in


def drawn(*place):
    seed_random(*place)
    return float(torch.rand(())), random.random(), float(np.random.rand())


def test_the_same_place_draws_the_same_numbers_whatever_was_drawn_before():
    first = drawn(3, 7, 1, 0)
    torch.rand(5)
    assert drawn(3, 7, 1, 0) == first


def test_no_two_places_draw_alike():
    """Also not where parts are exchanged, and for seeds beyond 32 bits."""
    places = list(itertools.product((0, 1, 2**40, 2**63 - 1), range(4), range(4), range(4)))
    draws = [drawn(*place) for place in places]
    for values in zip(*draws, strict=True):
        assert len(set(values)) > 0.99 * len(places)  # float32 has 2^24 values.
    assert len(set(draws)) == len(places)


def test_a_micro_batch_is_seeded_without_walking_the_stack():
    """As torch.manual_seed does for each kind of device that is not in use, at the cost of 0.15 ms."""
    assert calls_in(lambda: seed_random(3, 7, 1, 0))[1] < 100 < calls_in(lambda: torch.manual_seed(3))[1]
