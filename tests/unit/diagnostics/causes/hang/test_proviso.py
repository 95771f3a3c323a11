"""A finding that rests on an assumption says so and is less sure."""

from types import SimpleNamespace
from typing import Any

import pytest

from diagnostics.causes.hang._proviso import CONFIDENCE, assuming
from diagnostics.contract.findings import Finding, Stated, text_of

FOUND = Finding(
    cause="hang.x", status="confirmed", facts=Stated("It is so.", "1 of 4", "a dump"), confidence=0.9, ranks=(1,)
)


def job(*assumed: int) -> Any:
    return SimpleNamespace(waits=SimpleNamespace(assumed=set(assumed)))


def test_without_an_assumption_nothing_changes() -> None:
    assert assuming(job(), FOUND) is FOUND


@pytest.mark.parametrize(
    ("assumed", "words"),
    [((3,), "Rank 3 left no dump: this holds if it is not in that group."),
     ((2, 3), "Ranks 2 and 3 left no dump: this holds if they are not in that group.")],
)  # fmt: skip
def test_the_ranks_that_left_no_dump_are_named(assumed: tuple[int, ...], words: str) -> None:
    found = assuming(job(*assumed), FOUND)
    text = text_of(found)
    assert text.summary == f"It is so. {words}" and (text.measured, text.missing) == ("1 of 4", "a dump")
    assert (found.confidence, found.ranks) == (CONFIDENCE, (1,))


def test_only_what_is_confirmed_and_surer_is_weakened() -> None:
    weak = Finding(cause="hang.x", status="confirmed", facts=FOUND.facts, confidence=0.4)
    assert assuming(job(3), weak).confidence == 0.4
    undecided = Finding(cause="hang.x", status="undecided", facts=FOUND.facts, confidence=0.0)
    assert assuming(job(3), undecided) is undecided
