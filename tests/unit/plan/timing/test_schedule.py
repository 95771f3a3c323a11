"""The walk of a step, on cases worked by hand: a call of n bytes takes n seconds."""

import pytest
from hypothesis import given, strategies as st

from dtk.plan.timing.alpha_beta import Cost
from dtk.plan.timing.schedule import Bucket, Sharded, Unit, Walk, ddp_micro_batch, fsdp_micro_batch, update


def second_per_byte(op: str, group: str, size_bytes: float) -> Cost:
    return Cost("ring", float(size_bytes))


def walk(blocking: bool = False) -> Walk:
    return Walk(second_per_byte, blocking)


def figures(done: Walk) -> tuple[float, float, float, float]:
    """Compute, communication, exposed, step."""
    return done.compute_s, done.communication_s, done.end_s - done.compute_s, done.end_s


def bucket(fill_s: float, size_bytes: float) -> Bucket:
    return Bucket(fill_s, (("all_reduce", size_bytes),))


BUCKETS = [bucket(4, 3), bucket(4, 3), bucket(2, 3)]


def test_ddp_hides_all_but_the_last_bucket_and_the_queue_before_it() -> None:
    # Forward to 10. Buckets full at 14, 18, 20; on the wire 14-17, 18-21, 21-24: 4 s after the end of backward.
    done = walk()
    ddp_micro_batch(done, 10, BUCKETS, last=True)
    assert figures(done) == (20, 9, 4, 24)
    # The update waits for the last bucket.
    assert update(done, 1, 1, 3, []) == 5
    assert figures(done) == (25, 9, 4, 29)


def test_ddp_on_a_slow_network_is_bound_by_it() -> None:
    # Full at 14, 18, 20; on the wire 14-44, 44-74, 74-104.
    done = walk()
    ddp_micro_batch(done, 10, [bucket(each.fill_s, 30) for each in BUCKETS], last=True)
    assert figures(done) == (20, 90, 84, 104)


def test_calls_of_a_bucket_follow_each_other() -> None:
    # Full at 14: 14-17 and 17-19; full at 18: 19-22 and 22-24, 4 s after the end of backward.
    done = walk()
    calls = (("all_to_all", 3), ("all_gather", 2))
    ddp_micro_batch(done, 10, [Bucket(4, calls), Bucket(4, calls), Bucket(2, ())], last=True)
    assert figures(done) == (20, 10, 4, 24)
    assert {t.op: t.size_bytes for t in done.transfers.values()} == {"all_to_all": 6, "all_gather": 4}


def test_ddp_reduces_in_the_last_micro_batch_only() -> None:
    done = walk()
    done.repeat(3, lambda once: ddp_micro_batch(once, 10, BUCKETS, last=False))
    ddp_micro_batch(done, 10, BUCKETS, last=True)
    assert figures(done) == (80, 9, 4, 84)


def model(reshard: bool = True, depth: int = 1, replicated: bool = False, units: int = 2) -> Sharded:
    over = "dp_replicate" if replicated else ""
    unit = Unit(5, 10, gather_bytes=4, regather_bytes=4, reduce_bytes=6, shard_bytes=3, averaged_over=over)
    return Sharded((unit,) * units, Unit(1, 2, 1, 1, 2, 1, averaged_over=over), reshard, depth)


def test_fsdp_gathers_ahead_and_reduces_behind() -> None:
    # Root gathered 0-1; units 1-5 and, issued at 1, 5-9; forward 5-10-15, head to 16.
    # Backward: last unit gathered 16-20 behind the head (16-18), first one 20-24; compute 20-30-40.
    # Reduced 30-36, 40-46; the root's reduction waits for the buffer of the one before: 46-48.
    done = walk()
    fsdp_micro_batch(done, model(), last=True)
    assert figures(done) == (33, 31, 15, 48)


def test_zero2_does_not_gather_again() -> None:
    # As above to 16; backward 16-18-28-38; reduced 28-34, 38-44, 44-46.
    done = walk()
    fsdp_micro_batch(done, model(reshard=False), last=True)
    assert figures(done) == (33, 23, 13, 46)
    assert [t.count for t in done.transfers.values() if t.op == "all_gather"] == [3]


def test_accumulation_gathers_every_time_and_reduces_once() -> None:
    # A micro-batch without reduction: to 40 as above.
    done = walk()
    done.repeat(2, lambda once: fsdp_micro_batch(once, model(), last=False))
    assert figures(done) == (66, 34, 14, 80)
    fsdp_micro_batch(done, model(), last=True)
    assert done.end_s == 80 + 48
    assert {t.op: t.count for t in done.transfers.values()} == {"all_gather": 15, "reduce_scatter": 3}
    assert {t.op: t.size_bytes for t in done.transfers.values()} == {"all_gather": 51, "reduce_scatter": 14}


def test_hsdp_averages_over_the_replicas_after_each_reduction() -> None:
    # Reduced 30-36 and averaged (half the bytes) 36-39, 40-46-49; the root's reduction is behind that average on the
    # reduction's stream: 49-51-52.
    done = walk()
    fsdp_micro_batch(done, model(replicated=True), last=True)
    assert done.end_s == 52
    assert {(t.op, t.group): t.seconds for t in done.transfers.values()} == {
        ("all_gather", "dp_shard"): 17,
        ("reduce_scatter", "dp_shard"): 14,
        ("all_reduce", "dp_replicate"): 7,
    }


def test_deeper_prefetch_helps_where_gathers_are_uneven() -> None:
    # A large unit behind two small ones: one unit ahead there is too little compute to hide its gather.
    sizes = (1, 1, 12)
    units = tuple(Unit(5, 0, size, size, 0, 0) for size in sizes)
    ends = []
    for depth in (1, 2):
        done = walk()
        fsdp_micro_batch(done, Sharded(units, Unit(0, 0, 0, 0, 0, 0), False, depth), last=False)
        ends.append(done.end_s)
    # Depth 1: the third gather is issued when the second unit starts, 6-18, compute 18-23.
    # Depth 2: it is issued at 0 behind the small ones, 2-14, compute 14-19.
    assert ends == [23, 19]


def test_a_backend_that_blocks_the_host_hides_nothing() -> None:
    done = walk(blocking=True)
    fsdp_micro_batch(done, model(replicated=True), last=True)
    assert figures(done) == (33, 38, 38, 71)


def test_clipping_adds_one_reduction_that_nothing_hides() -> None:
    done = walk()
    update(done, 2, 3, 4, ["dp_shard"])
    assert figures(done) == (9, 4, 4, 13)
    without = walk()
    update(without, 0, 0, 4, ["dp_shard"])
    assert figures(without) == (4, 0, 0, 4)


seconds = st.floats(0, 100)
some_units = st.lists(st.builds(Unit, *[seconds] * 6), max_size=6)


@given(
    units=some_units,
    root=st.builds(Unit, *[seconds] * 6),
    reshard=st.booleans(),
    depth=st.integers(0, 4),
    replicated=st.booleans(),
    blocking=st.booleans(),
    rounds=st.integers(0, 3),
)
def test_exposed_is_part_of_the_communication(
    units: list[Unit], root: Unit, reshard: bool, depth: int, replicated: bool, blocking: bool, rounds: int
) -> None:
    sharded = Sharded(tuple(units), root, reshard, depth)
    done, plain = walk(blocking), walk(blocking)
    done.repeat(rounds, lambda once: fsdp_micro_batch(once, sharded, last=False))
    for _ in range(rounds):
        fsdp_micro_batch(plain, sharded, last=False)
    for either in (done, plain):
        fsdp_micro_batch(either, sharded, last=True)
        update(either, 1, 1, 1, ["dp_shard"])
    compute, communication, exposed, step = figures(done)
    assert compute == pytest.approx((rounds + 1) * sum(u.forward_s + u.backward_s for u in [*units, root]) + 3)
    assert -1e-9 <= exposed <= communication + 1e-6
    assert exposed == pytest.approx(communication) or not blocking
    # A micro-batch that is walked once and counted `rounds` times is as long as walking it again.
    assert figures(plain) == pytest.approx(figures(done))
    # Hiding nothing is the worst.
    worst = walk(blocking=True)
    worst.repeat(rounds, lambda once: fsdp_micro_batch(once, sharded, last=False))
    fsdp_micro_batch(worst, sharded, last=True)
    update(worst, 1, 1, 1, ["dp_shard"])
    assert step <= worst.end_s + 1e-6


@given(
    forward=seconds,
    fills=st.lists(st.tuples(seconds, seconds), min_size=1, max_size=8),
    faster=st.floats(0, 1),
)
def test_faster_links_are_never_slower(forward: float, fills: list[tuple[float, float]], faster: float) -> None:
    ends = []
    for factor in (1.0, faster):
        done = walk()
        ddp_micro_batch(done, forward, [bucket(fill, size * factor) for fill, size in fills], last=True)
        assert -1e-9 <= done.end_s - done.compute_s <= done.communication_s + 1e-6
        ends.append(done.end_s)
    assert ends[1] <= ends[0] + 1e-9
