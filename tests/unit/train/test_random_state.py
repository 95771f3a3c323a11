"""seed_random: a function of the place in the run, and of every part of it."""

import itertools
import random

import numpy as np
import torch

from dtk.train.random_state import seed_random


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
