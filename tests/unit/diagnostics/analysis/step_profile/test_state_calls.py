"""The reductions of gradients by step, and what is typical over steps and ranks."""

import pytest

from diagnostics.analysis.step_profile.state_calls import PerRank, find_reductions, large, share_of, tiny, total_bytes
from tests.unit.diagnostics.analysis.step_profile.profiles import MIB, call, rank, step


def test_reductions_inside_and_after_the_backward_pass() -> None:
    calls = [
        call(), call("reduce_scatter"), call(phase="after"), call("all_gather"), call(phase="forward"), call(size=64),
        call(group="control"), call(waited=True), call(on_compute=True),
    ]  # fmt: skip
    (result,) = find_reductions([rank(0, *calls)]).of_rank[0]
    assert [item.message.op for item in result.inside] == ["all_reduce", "reduce_scatter"]
    assert len(result.after) == 1 and (result.span, result.backward) == ((500, 1500), 1000)


def test_only_steps_in_which_backward_is_visible_count() -> None:
    reductions = find_reductions(
        [rank(0, steps=[step(0, micros=0), step(1, updated=1)]), rank(1, steps=[step(0, micros=0)])]
    )
    assert [[item.updated for item in steps] for steps in reductions.of_rank.values()] == [[1], []] and reductions
    assert not find_reductions([rank(0, steps=[step(0, micros=0)])])


def test_those_of_the_last_micro_batch() -> None:
    calls = [call(micro=0), call(micro=1, start=9)]
    (result,) = find_reductions([rank(0, *calls, steps=[step(micros=2)])]).of_rank[0]
    assert [item.start for item in result.last()] == [9]


def test_shares_are_of_bytes_else_of_transfer_times() -> None:
    sized = [call(size=30 * MIB), call(size=10 * MIB)]
    assert total_bytes(sized) == 40 * MIB and share_of(sized[0], sized) == 0.75
    unsized = [call(size=0, length=300), call(size=0, length=100)]
    assert total_bytes(unsized) == 0 and share_of(unsized[0], unsized) == 0.75
    assert total_bytes([*sized, *unsized]) == 0, "of some the size is unknown"
    assert share_of(call(length=0, size=0), [call(length=0, size=0)]) == 0.0


def test_large_and_tiny_ones() -> None:
    calls = [call(size=90 * MIB), call(size=5 * MIB), call(size=MIB)]
    assert large(calls) == calls[:1] and tiny(calls, brief_ns=1) == 1
    assert tiny([call(size=0, length=50), call(size=0, length=500)], brief_ns=50) == 1


def test_typical_is_the_median_of_ranks_over_the_medians_of_their_parts() -> None:
    per_rank = PerRank({0: [1, 2, 90], 1: [4], 2: []})
    assert per_rank.typical(float) == 3.0 and per_rank.sample == 2
    assert PerRank[int]({0: []}).typical(float) == 0.0
    with pytest.raises(StopIteration):
        _ = PerRank[int]({0: []}).sample


def test_what_is_mostly_so_is_so_in_most_parts_of_most_ranks() -> None:
    parts = PerRank({0: [1, 1, 0], 1: [1, 1, 1], 2: [0, 0, 1]})
    assert parts.mostly(bool)
    assert not PerRank({0: [1, 0]}).mostly(bool), "half of them are not most"
    assert not PerRank({0: [1], 1: [0]}).mostly(bool) and not PerRank[int]({}).mostly(bool)
