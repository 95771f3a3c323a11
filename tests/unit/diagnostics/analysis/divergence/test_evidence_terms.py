"""Weights are log odds: what a report may say about how sure a kind is."""

from typing import get_args

import pytest

from diagnostics.analysis.divergence.evidence_terms import (
    CERTAIN_AFTER,
    POSITION,
    SUPPORT,
    UNCLEAR,
    Position,
    Support,
    Term,
    position,
    probability,
    support,
)


def test_every_name_has_a_weight_and_every_weight_a_name() -> None:
    assert set(SUPPORT) == set(get_args(Support)) and set(POSITION) == set(get_args(Position))
    assert all(weight > 0 for weight in SUPPORT.values())


@pytest.mark.parametrize(("weight", "chance"), [(0.0, 0.5), (1.7, 0.85), (3.5, 0.97), (-1.7, 0.15)])
def test_log_odds_are_a_probability(weight: float, chance: float) -> None:
    assert probability(weight) == chance


def test_terms_carry_their_weight_and_count() -> None:
    assert support("later calls agree", 7) == Term("later calls agree", SUPPORT["later calls agree"], 7)
    assert position("next line") == Term("next line", POSITION["next line"])


def test_what_places_a_call_behind_the_loop_outweighs_what_is_usual() -> None:
    for name in CERTAIN_AFTER:
        assert POSITION[name] + POSITION["any call"] > UNCLEAR  # type: ignore[index]
