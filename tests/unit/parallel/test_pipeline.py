"""Schedules: every computation once, in an order that ends, with the bubble and the memory of their papers."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules

from dtk.errors import DtkError
from dtk.parallel.pipeline import (
    FREES,
    RECEIVES,
    SCHEDULES,
    SENDS,
    Pipeline,
    forward_only,
    stage_sizes,
    walk,
)

SHAPES = [(1, 1), (2, 1), (2, 4), (2, 5), (3, 7), (4, 4), (4, 6), (4, 8)]
WITHOUT_ROUNDS = ("looped_bfs", "zbv")
ALL = [
    Pipeline(name, ranks, count, local)
    for name, schedule in SCHEDULES.items()
    for local in (1, 2)
    if schedule.per_rank[0] <= local <= schedule.per_rank[1]
    for ranks, count in SHAPES
    if local == 1 or name in WITHOUT_ROUNDS or count % max(1, count // ranks) == 0
]


@pytest.mark.parametrize("pipeline", ALL, ids=str)
def test_every_stage_computes_every_micro_batch_once(pipeline):
    pipeline.check()
    splits = SCHEDULES[pipeline.schedule].splits
    kinds = ("forward", "input_gradient", "weight_gradient") if splits else ("forward", "backward")
    for rank, order in enumerate(pipeline.orders()):
        counts = Counter(action for action in order if action.kind not in (*SENDS, *RECEIVES))
        mine = pipeline.stages_of(rank)
        assert {pipeline.rank_of(stage) for stage in mine} == {rank}
        expected = {(kind, stage, i) for kind in kinds for stage in mine for i in range(pipeline.micro_batches)}
        assert set(counts) == expected and set(counts.values()) == {1}


@pytest.mark.parametrize("pipeline", ALL, ids=str)
def test_messages_pair_in_the_same_order_on_both_ranks(pipeline):
    """NCCL matches messages between two ranks by their order alone."""

    def between(rank, peer):
        for kind, stage, i in pipeline.orders()[rank]:
            if kind in (*SENDS, *RECEIVES):
                sender = stage if kind in SENDS else stage + (1 if kind == "receive_backward" else -1)
                receiver = stage if kind in RECEIVES else stage + (1 if kind == "send_forward" else -1)
                other = receiver if kind in SENDS else sender
                if pipeline.rank_of(other) == peer:
                    yield sender, receiver, i

    for rank in range(pipeline.ranks):
        for peer in range(rank):
            assert list(between(rank, peer)) == list(between(peer, rank))


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (2, 5), (4, 8), (4, 6), (8, 64)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_bubble_of_the_papers(name, ranks, count):
    """Narayanan et al. 2021, section 2.2.1: (p-1)/m of the ideal time, (p-1)/(m+p-1) of the whole."""
    assert Pipeline(name, ranks, count).ideal_bubble == pytest.approx((ranks - 1) / (count + ranks - 1))


@pytest.mark.parametrize(("ranks", "count", "local"), [(2, 4, 2), (4, 8, 2), (4, 16, 4)])
def test_the_interleaved_bubble_is_v_times_smaller(ranks, count, local):
    pipeline = Pipeline("interleaved_1f1b", ranks, count, local)
    assert pipeline.ideal_bubble == pytest.approx((ranks - 1) / (local * count + ranks - 1))


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (4, 8), (4, 16), (8, 32)])
@pytest.mark.parametrize(("name", "local"), [("zero_bubble", 1), ("zero_bubble", 2), ("zbv", 2)])
def test_weight_gradients_fill_the_bubble_and_no_rank_holds_more_than_the_first_of_1f1b(name, local, ranks, count):
    """Qi et al. 2023, table 1 (ZB-H1), and Qi et al. 2024, section 4.1 (V-ZB), if all three computations take equally
    long: a third of the bubble, with one stage on each rank, at the peak of 1F1B.
    """
    pipeline = Pipeline(name, ranks, count, local)
    assert pipeline.ideal_bubble == pytest.approx((ranks - 1) / (3 * local * count + ranks - 1))
    assert max(map(pipeline.in_flight, range(ranks))) == local * Pipeline("1f1b", ranks, count).in_flight(0)


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (4, 8)])
def test_breadth_first_has_the_bubble_of_the_interleaved_schedule_and_holds_all(ranks, count):
    bfs, interleaved = (Pipeline(name, ranks, count, 2) for name in ("looped_bfs", "interleaved_1f1b"))
    assert bfs.ideal_bubble == pytest.approx(interleaved.ideal_bubble)
    assert {bfs.in_flight(rank) for rank in range(ranks)} == {2 * count}


@pytest.mark.parametrize(
    ("ours", "theirs", "local"),
    [
        ("zero_bubble", "InterleavedZeroBubble", 1),
        ("zero_bubble", "InterleavedZeroBubble", 2),
        ("zbv", "ZBVZeroBubble", 2),
    ],
)
@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (4, 8), (4, 16)])
def test_split_backwards_wait_and_hold_no_more_than_in_torchs_orders(ours, theirs, local, ranks, count):
    pipeline, own = Pipeline(ours, ranks, count, local), getattr(schedules, f"Schedule{theirs}")
    for rank in range(ranks):
        places = [
            SimpleNamespace(num_stages=ranks * local, group_size=ranks, group_rank=rank, submod=None)
            for _ in range(local)
        ]
        order = own(places, count, loss_fn=lambda output, target: output).pipeline_order[rank]
        kinds = [action.computation_type.name for action in order if action is not None]
        moves = {"FORWARD": 1, "BACKWARD_WEIGHT": -1, "FULL_BACKWARD": -1}
        assert pipeline.in_flight(rank) <= max(itertools.accumulate(moves.get(kind, 0) for kind in kinds))


def test_what_the_schedules_hold():
    assert [Pipeline("gpipe", 4, 8).in_flight(rank) for rank in range(4)] == [8] * 4
    assert [Pipeline("1f1b", 4, 8).in_flight(rank) for rank in range(4)] == [4, 3, 2, 1]
    assert [Pipeline("1f1b", 4, 2).in_flight(rank) for rank in range(4)] == [2, 2, 2, 1]


@pytest.mark.parametrize(("ranks", "local", "count"), [(2, 2, 4), (4, 2, 6), (4, 3, 8)])
def test_the_interleaved_order_is_torchs(ranks, local, count):
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    stages = [SimpleNamespace(num_stages=ranks * local, group_size=ranks, group_rank=0) for _ in range(local)]
    theirs = ScheduleInterleaved1F1B(stages, count, loss_fn=lambda output, target: output).pipeline_order
    letters = {"forward": "F", "backward": "B"}
    for rank, order in enumerate(Pipeline("interleaved_1f1b", ranks, count, local).orders()):
        ours = [f"{a.stage}{letters[a.kind]}{a.micro_batch}" for a in order if a.kind in letters]
        assert ours == [str(action) for action in theirs[rank] if action is not None]


def test_messages_cost_time_but_are_no_work():
    pipeline = Pipeline("1f1b", 2, 4)
    free, slow = (walk(pipeline, lambda action: 1.0, message_s) for message_s in (0.0, 0.5))
    assert slow.end_s > free.end_s and slow.busy_s == free.busy_s
    assert [sum(action.kind in SENDS for action in order) for order in pipeline.orders()] == [4, 4]


@pytest.mark.parametrize("count", [1, 5, 7])
def test_evaluation_only_goes_forward(count):
    orders = forward_only(Pipeline("interleaved_1f1b", 3, 1, 2), count)
    assert not {action.kind for order in orders for action in order} & {*FREES, "send_backward", "receive_backward"}
    forwards = {(action.stage, action.micro_batch) for order in orders for action in order if action.kind == "forward"}
    assert forwards == {(stage, i) for stage in range(6) for i in range(count)}


@pytest.mark.parametrize(("layers", "stages", "sizes"), [(8, 4, [2] * 4), (80, 7, [11, 11, 11, 12, 12, 12, 11])])
def test_blocks_are_shared_out_evenly_and_the_ends_get_no_more(layers, stages, sizes):
    assert stage_sizes(layers, stages) == sizes


@pytest.mark.parametrize(
    ("layers", "stages", "head", "sizes"),
    [
        (12, 2, 5.45, [9, 3]),  # GPT-2: 50,257 words over a width of 768.
        (70, 12, 1.46, [6] * 11 + [4]),  # BLOOM 176B
        (4, 4, 9.0, [1] * 4),
        (5, 2, 9.0, [4, 1]),
        (7, 1, 3.0, [7]),
    ],
)
def test_the_last_stage_has_the_fewer_blocks_the_longer_its_output_projection_takes(layers, stages, head, sizes):
    assert stage_sizes(layers, stages, head) == sizes


@pytest.mark.parametrize("head", [0.0, 0.4, 3.7])
@pytest.mark.parametrize(("layers", "stages"), [(9, 3), (10, 4), (8, 2)])
def test_no_division_has_a_shorter_longest_stage(layers, stages, head):
    """Against every division of the blocks over the stages."""
    cuts = itertools.combinations(range(1, layers), stages - 1)
    every = [[b - a for a, b in itertools.pairwise((0, *cut, layers))] for cut in cuts]
    sizes = stage_sizes(layers, stages, head)
    assert sizes in every
    assert max(*sizes[:-1], sizes[-1] + head) == min(max(*each[:-1], each[-1] + head) for each in every)


@pytest.mark.parametrize(
    ("pipeline", "fix"),
    [
        (Pipeline("interleaved_1f1b", 2, 4), "parallel.stages_per_rank=2"),
        (Pipeline("1f1b", 2, 4, 2), "parallel.stages_per_rank=1"),
        (Pipeline("interleaved_1f1b", 4, 9, 2), "parallel.microbatches=8"),
        (Pipeline("zbv", 2, 4), "parallel.stages_per_rank=2, or parallel.schedule=1f1b"),
        (Pipeline("zbv", 2, 4, 3), "parallel.stages_per_rank=2, or parallel.schedule=interleaved_1f1b"),
        (Pipeline("zero_bubble", 4, 9, 2), "parallel.microbatches=8"),
    ],
)
def test_what_a_schedule_cannot_do_is_refused(pipeline, fix):
    with pytest.raises(DtkError, match=fix):
        pipeline.check()
