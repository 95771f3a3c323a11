import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dtk.data import sampler
from dtk.data.sampler import evaluation_ids, permute, sample_ids, samples_sum
from dtk.parallel.batch_plan import BatchPlan
from tests.patience import stretched

SEEDS = st.integers(-(2**63), 2**63)


@given(seed=SEEDS, size=st.one_of(st.integers(40, 700), st.just(3)), epoch=st.integers(0, 50), batch=st.integers(1, 40))
@settings(deadline=None, max_examples=50)
def test_every_epoch_is_a_permutation(seed: int, size: int, epoch: int, batch: int) -> None:
    # The epoch is read in batches that do not divide it: from the first that touches it to the last.
    first, last = epoch * size // batch, (epoch + 1) * size // batch
    stream = np.concatenate([sample_ids(seed, step, batch, size) for step in range(first, last + 1)])
    start = epoch * size - first * batch
    assert sorted(stream[start : start + size]) == list(range(size))


@given(size=st.one_of(st.integers(1, 70), st.sampled_from([2**k + d for k in (8, 10, 12) for d in (-1, 0, 1)])))
@settings(deadline=None)
def test_permute_is_a_bijection(size: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, "key")), np.arange(size))


@given(seed=SEEDS, size=st.integers(50, 5000))
@settings(deadline=None)
def test_epochs_and_seeds_differ(seed: int, size: int) -> None:
    orders = [sample_ids(seed, 0, size, size), sample_ids(seed, 1, size, size), sample_ids(seed + 1, 0, size, size)]
    assert all(not np.array_equal(orders[i], orders[j]) for i in range(3) for j in range(i))
    assert not np.array_equal(orders[0], np.arange(size))


@given(
    seed=SEEDS,
    step=st.integers(0, 10**9),
    world_size=st.integers(1, 9),
    micro=st.integers(1, 5),
    rounds=st.integers(1, 5),
    size=st.integers(100, 10**12),
)
@settings(deadline=None, max_examples=50)
def test_rank_slices_tile_the_same_global_batch(
    seed: int, step: int, world_size: int, micro: int, rounds: int, size: int
) -> None:
    batch = world_size * micro * rounds
    ids = sample_ids(seed, step, batch, size)
    plan, one_rank = BatchPlan(batch, micro, world_size), BatchPlan(batch, micro, 1)
    assert plan.accumulation_steps == rounds
    assert ids.dtype == np.int64 and ids.min() >= 0 and ids.max() < size
    taken = [ids[plan.positions(rank, micro_step)] for micro_step in range(rounds) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(taken), ids)
    # One rank that accumulates sees the same samples in the same order.
    alone = [ids[one_rank.positions(0, i)] for i in range(rounds * world_size)]
    assert np.array_equal(np.concatenate(alone), ids)


def test_a_batch_may_span_several_epochs() -> None:
    ids = sample_ids(1, 0, 10, 3)
    for epoch in range(3):
        assert sorted(ids[3 * epoch : 3 * epoch + 3]) == [0, 1, 2]


def test_the_order_never_changes_between_versions_of_dtk() -> None:
    # A resumed run depends on these numbers; change them and old checkpoints see other samples.
    assert sample_ids(1234, 0, 8, 1000).tolist() == [233, 643, 665, 624, 73, 37, 387, 907]
    assert sample_ids(1234, 124, 12, 1000).tolist() == [998, 989, 113, 787, 852, 392, 73, 791, 939, 927, 141, 311]


def test_a_shuffled_epoch_looks_shuffled() -> None:
    size = 10_000
    order = sample_ids(7, 0, size, size)
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.05
    # Neighbours in the epoch are as far apart as at random: a third of the range on average.
    assert 0.30 < np.abs(np.diff(order)).mean() / size < 0.37


@pytest.mark.timeout(60)
def test_memory_depends_on_the_batch_only() -> None:
    assert len(np.unique(sample_ids(3, 10**6, 64, 10**15))) == 64


def test_pure_in_another_process_and_without_torch() -> None:
    code = (
        "import sys; from dtk.data.sampler import sample_ids; import dtk.data.corpus;"
        "print(sample_ids(5, 77, 6, 123).tolist()); assert 'torch' not in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=stretched(60)
    )
    assert run.stdout.strip() == str(sample_ids(5, 77, 6, 123).tolist())


def test_the_sum_of_the_samples_depends_on_step_and_ids_but_on_no_order() -> None:
    ids = sample_ids(7, 3, 64, 1000)
    whole = samples_sum(3, ids) % 2**64
    dealt = sum(samples_sum(3, ids[BatchPlan(64, 4, 4).positions(rank, i)]) for rank in range(4) for i in range(4))
    assert dealt % 2**64 == whole
    assert samples_sum(3, ids[::-1]) % 2**64 == whole
    assert samples_sum(4, ids) % 2**64 != whole
    assert samples_sum(3, np.append(ids[1:], ids[0] + 1)) % 2**64 != whole
    # Of two steps with the same ids in another order between them, too.
    first, second = np.array([1, 2]), np.array([3, 4])
    item = samples_sum(0, first) + samples_sum(1, second)
    assert (item - samples_sum(0, second) - samples_sum(1, first)) % 2**64 != 0


def test_held_out_samples_are_distinct_and_those_of_a_larger_evaluation() -> None:
    whole = evaluation_ids(3, 100, 100)
    assert sorted(whole) == list(range(100))
    assert list(whole) != list(range(100))
    assert list(evaluation_ids(3, 12, 100)) == list(whole[:12])
    assert list(evaluation_ids(4, 12, 100)) != list(whole[:12])
    assert evaluation_ids(3, 0, 100).tolist() == []


def test_a_step_on_tiny_data_permutes_no_more_than_an_epoch_or_its_own_batch() -> None:
    # Read from the work done: a permutation for each epoch that a block touches.
    permuted: list[int] = []
    original = sampler.permute

    def counted(positions: np.ndarray, size: int, key: str) -> np.ndarray:
        permuted.append(len(positions))
        return original(positions, size, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "permute", counted)
        sampler._ids.cache_clear()
        ids = sample_ids(7, 3, 4, 10)
    assert sum(permuted) <= 10 and len(permuted) <= 2
    both = np.concatenate([original(np.arange(10), 10, f"7/{epoch}") for epoch in (0, 1)])
    assert ids.tolist() == both[12:16].tolist()
