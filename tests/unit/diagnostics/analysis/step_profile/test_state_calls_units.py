"""Gathers and reductions of sharded parameters by micro-batch."""

from diagnostics.analysis.step_profile.state_calls import find_units, hidden_share
from tests.unit.diagnostics.analysis.step_profile.profiles import call, rank, step


def test_gathers_are_told_apart_by_phase_and_micro_batch() -> None:
    calls = [
        call("all_gather", phase="forward"),
        call("all_gather", start=5),
        call("reduce_scatter", start=9),
        call("all_gather", phase="forward", micro=1, start=20),
        call("all_gather", phase="optimizer"),
        call("all_reduce"),
    ]
    units = find_units([rank(0, *calls, steps=[step(micros=2, compute=1000)])])
    first, second = units.of_rank[0]
    assert (len(first.gathers), len(first.again), len(first.scatters)) == (1, 1, 1)
    assert len(second.gathers) == 1 and len(first.calls) == 3
    assert first.compute == second.compute == 500
    assert units.sharded and units.phases and units.typical(lambda batch: len(batch.calls)) == 2


def test_a_job_without_both_operations_is_not_sharded() -> None:
    assert not find_units([rank(0, call("all_gather"))]).sharded
    unphased = find_units([rank(0, call("all_gather", phase=""), call("reduce_scatter", phase=""))])
    assert unphased.sharded and not unphased.phases and unphased.of_rank == {0: []}


def test_the_share_of_their_time_beside_compute() -> None:
    calls = [call(length=300, overlapped=200), call(length=100, overlapped=0)]
    assert hidden_share(calls) == 0.5 and hidden_share([]) == 0.0
