"""Who trains on which samples: each sample of a global batch once, on any mesh; valid sizes near one that is not."""

from hypothesis import given, settings, strategies as st

from diagnostics.contract.mesh import Mesh
from dtk.parallel.batch_plan import LARGEST_CHOSEN, BatchPlan, evaluation_positions, evaluation_rounds
from tests.unit.diagnostics.contract.test_mesh import meshes

SMALL = st.integers(1, 6)


@given(mesh=meshes(), micro=SMALL, rounds=SMALL)
@settings(deadline=None)
def test_every_sample_is_taken_once_by_one_data_parallel_rank(mesh: Mesh, micro: int, rounds: int) -> None:
    plan = BatchPlan(mesh.dp_size * micro * rounds, micro, mesh.dp_size)
    assert plan.is_whole and plan.accumulation_steps == rounds
    taken: dict[int, set[int]] = {}
    for rank in range(mesh.world_size):
        for step in range(plan.accumulation_steps):
            for sample in range(plan.global_batch_size)[plan.positions(mesh.index("dp", rank), step)]:
                taken.setdefault(sample, set()).add(mesh.index("dp", rank))
    assert sorted(taken) == list(range(plan.global_batch_size))
    assert {len(ranks) for ranks in taken.values()} == {1}


@given(total=st.integers(1, 200), micro=SMALL, ranks=SMALL)
def test_sizes_that_are_named_are_valid_and_no_nearer_one_is_left_out(total: int, micro: int, ranks: int) -> None:
    plan = BatchPlan(total, micro, ranks)
    assert plan.is_whole == (total % (micro * ranks) == 0)
    for size in plan.nearest_global_batch_sizes():
        assert BatchPlan(size, micro, ranks).is_whole and abs(size - total) <= micro * ranks
    valid = [size for size in range(1, total + 1) if BatchPlan(total, size, ranks).is_whole]
    assert plan.micro_batch_sizes() == valid
    named = plan.nearest_micro_batch_sizes()
    assert set(named) <= set(valid) and named == sorted(named)
    farthest = max((abs(size - micro) for size in named), default=0)
    assert all(abs(size - micro) >= farthest for size in set(valid) - set(named))
    assert plan.chosen_micro_batch_size() == max((size for size in valid if size <= LARGEST_CHOSEN), default=None)
    assert total % plan.fewer_ranks() == 0 and plan.fewer_ranks() <= ranks


@given(size=st.integers(0, 100), micro=SMALL, ranks=SMALL)
def test_held_out_samples_are_dealt_out_in_equal_rounds(size: int, micro: int, ranks: int) -> None:
    parts = [list(evaluation_positions(size, rank, ranks)) for rank in range(ranks)]
    assert sorted(sample for part in parts for sample in part) == list(range(size))
    rounds = evaluation_rounds(size, micro, ranks)
    assert all(len(part) <= rounds * micro for part in parts)
    assert rounds == max((-(-len(part) // micro) for part in parts), default=0)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8))
def test_a_size_for_a_number_of_micro_batches_makes_that_many(total: int, dp_size: int, steps: int) -> None:
    size = BatchPlan(total, 1, dp_size).micro_batch_size_of(steps)
    if size is None:
        assert total % (dp_size * steps)
    else:
        plan = BatchPlan(total, size, dp_size)
        assert plan.is_whole and plan.accumulation_steps == steps
