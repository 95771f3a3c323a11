"""Random programs with one planted edit: the divergence found is that edit, or one that explains the calls as well."""

import random
from itertools import islice

import pytest

from tests.unit.diagnostics.analysis.divergence.programs import PLANTED, judge, plant

ACCEPTED = {"right", "equal", "nothing to see"}


@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_programs(part: int) -> None:
    """The ranks and the position are always right; the kind is not in one program of all, whose record excludes it."""
    cases = (plant(random.Random(seed)) for seed in range(1400 * part, 1400 * (part + 1)))
    verdicts = [judge(case) for case in islice(filter(None, cases), 1000)]
    others = [verdict for verdict in verdicts if verdict not in ACCEPTED]
    assert len(verdicts) == 1000
    assert all(verdict.endswith("is told from the planted edit by the record") for verdict in others), others
    assert len(others) <= (part == 5)


@pytest.mark.parametrize("planted", PLANTED)
def test_with_all_later_calls_recorded_the_planted_edit_is_named(planted: str) -> None:
    """A single call left out among equal ones is a round less as well, and the like: these are few."""
    cases = (plant(random.Random(seed)) for seed in range(600))
    whole = [case for case in cases if case is not None and case.planted == planted and not case.blocked]
    verdicts = [verdict for case in whole if (verdict := judge(case)) != "nothing to see"]
    assert len(verdicts) > 15 and set(verdicts) <= ACCEPTED
    assert verdicts.count("right") >= 0.7 * len(verdicts)
