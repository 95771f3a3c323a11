"""What ranks publish of their calls: packed and read back as it was, and the first difference is found."""

from hypothesis import given
from hypothesis import strategies as st

from dtk.record.desync import first_difference
from dtk.record.judge import pack, unpack

HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=64)
CALLS = st.lists(st.sampled_from("abc"), min_size=1, max_size=20)


@given(HASHES)
def test_hashes_come_back_as_they_were(history: list[int]) -> None:
    assert unpack(pack(history)) == tuple(history)


def published(calls: list[str], kept: int) -> tuple[int, tuple[int, ...]]:
    """A rank's count and its last rolling hashes."""
    rolling = [hash(tuple(calls[: n + 1])) for n in range(len(calls))]
    return len(calls), tuple(rolling[-kept:])


@given(CALLS, st.lists(st.integers(1, 20), min_size=2, max_size=5), st.integers(1, 20))
def test_ranks_on_one_way_do_not_differ_however_far_each_is(calls: list[str], counts: list[int], kept: int) -> None:
    assert first_difference({rank: published(calls[:count], kept) for rank, count in enumerate(counts)}) is None


@given(CALLS, CALLS, CALLS)
def test_the_first_differing_call_of_two_ranks_is_found(same: list[str], one: list[str], other: list[str]) -> None:
    ours, theirs = same + one, same + other
    shorter = min(len(ours), len(theirs))
    expected = next((n + 1 for n in range(shorter) if ours[n] != theirs[n]), None)
    assert first_difference({0: published(ours, 64), 1: published(theirs, 64)}) == expected
