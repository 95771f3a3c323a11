"""What ranks send and what their peers expect: random exchanges with one change that is known."""

import json
from pathlib import Path

from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from diagnostics.analysis.pairwise import Pairs, _splits, first_misfit
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.ring.format import parse
from tests.unit.diagnostics.ring_bytes import RingCall, ring

ROWS = st.integers(0, 9)


def exchange(table: list[list[int]], rank: int, expected: list[int] | None = None) -> RingCall:
    """One rank's all_to_all: it sends its row of the table and expects its column, or something else."""
    sent, due = table[rank], [row[rank] for row in table] if expected is None else expected
    return RingCall("all_to_all_single", splits=(sent, due), sizes=([sum(sent), 2], [sum(due), 2]))


def pairs_of(calls: dict[int, list[RingCall]], world: int) -> Pairs:
    records = {rank: parse(ring(rank, world, call)).records for rank, call in calls.items()}
    return Pairs(Evidence(Path(), Limits()), None, records, {})


@st.composite
def tables(draw: st.DrawFn) -> list[list[int]]:
    """Rows that each rank sends to each other one."""
    world = draw(st.integers(2, 5))
    return [[draw(ROWS) for _ in range(world)] for _ in range(world)]


@given(tables())
@settings(max_examples=60)
def test_tables_that_agree_have_no_misfit(table: list[list[int]]) -> None:
    calls = {rank: [RingCall("all_reduce"), exchange(table, rank)] for rank in range(len(table))}
    assert first_misfit(pairs_of(calls, len(table))) is None


@given(tables(), st.data())
@settings(max_examples=60)
def test_what_one_rank_expects_otherwise_is_what_is_found(table: list[list[int]], data: st.DataObject) -> None:
    """The misfits are exactly the pairs that were changed, and the rank that changed them is among the culprits."""
    world = len(table)
    uneven = data.draw(st.integers(0, world - 1))
    changed = data.draw(st.sets(st.integers(0, world - 1), min_size=1))
    expected = [row[uneven] + (sender in changed) for sender, row in enumerate(table)]
    calls = {rank: [exchange(table, rank, expected if rank == uneven else None)] for rank in range(world)}
    case = first_misfit(pairs_of(calls, world))
    assert case is not None
    assert {(m.sender, m.receiver, m.expected - m.sent) for m in case.misfits} == {(s, uneven, 1) for s in changed}
    assert uneven in case.culprits and case.group == tuple(range(world))
    assert {*case.culprits} | {*case.victims} == {*range(world)}
    if len(changed - {uneven}) > 1 and world > 2:
        assert case.culprits == (uneven,), "it fits none of several peers, and each of those fits the others"


def test_the_first_exchange_that_does_not_fit_counts() -> None:
    even = [[4, 4], [4, 4]]
    calls = {0: [exchange(even, 0)] * 3, 1: [exchange(even, 1), exchange(even, 1, [3, 4]), exchange(even, 1, [2, 4])]}
    case = first_misfit(pairs_of(calls, 2))
    assert case is not None and [(m.sent, m.expected, m.calls[0].seq) for m in case.misfits] == [(4, 3, 2)]


def test_no_splits_stand_for_even_ones_and_damaged_ones_for_nothing() -> None:
    calls = {0: [RingCall("all_to_all_single", splits=([], []), sizes=([8, 2], [8, 2]))]}
    (record,) = pairs_of(calls, 4).records[0]
    assert _splits(record, 4) == ([2, 2, 2, 2], [2, 2, 2, 2])
    for damaged in ("", "[", "[[1]]", "[[1, 2], [3, 4]]", json.dumps([["a"] * 4, [1] * 4]), "[" * 5000):
        assert _splits(replace(record, splits=damaged), 4) is None
