"""Who waits for whom: roots, what they reach, cycles, and sends without their other half."""

from hypothesis import given, settings, strategies as st

from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.one_rank import MAX_P2P
from diagnostics.analysis.wait_graph.graph import Cycle, Operation, WaitGraph, _components, build, same_tag
from diagnostics.evidence.calls import Call, GroupKey
from tests.unit.diagnostics.analysis.calls import DEFAULT, call, frame, survey

WORLD = (0, 1, 2, 3)
GLOO = GroupKey("gloo", "1", "")


def waits_in(rank: int, seq: int, key: GroupKey = DEFAULT, before: int = 0) -> list[Call]:
    """Calls of which the last one did not complete."""
    return [call(at, 10, key=key, done=at < seq) for at in range(max(1, seq - before), seq + 1)]


def graph(ranks: dict[int, list[Call]], world_size: int = 4, **dump: object) -> tuple[WaitGraph, Survey]:
    job = survey(ranks, world_size, **dump)
    return build(job), job


def test_ranks_wait_for_those_that_did_not_come() -> None:
    ranks = {rank: waits_in(rank, 3, before=2) for rank in (0, 1, 3)}
    ranks[2] = [call(1), call(2)]
    waits, _ = graph(ranks)
    operation = Operation(DEFAULT, 3)
    assert waits.waiting == {operation: [0, 1, 3]} and waits.absent == {operation: (2,)}
    assert waits.waited_for() == {2} and waits.roots() == (2,)
    assert waits.blockers(0) == [operation] and waits.blockers(2) == []
    assert waits.reaching([2]) == {0, 1, 3} and waits.cycles() == []
    assert waits.calls[3, operation].seq == 3 and waits.of_rank.keys() == {0, 1, 3}


def test_a_rank_without_a_dump_is_absent_and_one_that_went_on_completed() -> None:
    waits, _ = graph({0: waits_in(0, 2), 1: [call(1), call(2), call(3)], 3: waits_in(3, 2)})
    operation = Operation(DEFAULT, 2)
    assert waits.absent[operation] == (2,) and waits.complete[operation] == [1]


def test_two_groups_used_in_different_orders_are_a_cycle() -> None:
    group_key, other = GroupKey("nccl", "1", "tp"), GroupKey("nccl", "2", "dp")
    members = {group_key: (0, 1), other: (0, 1)}
    waits, _ = graph({0: waits_in(0, 1, group_key), 1: waits_in(1, 1, other)}, 2, members=members)
    (cycle,) = waits.cycles()
    assert cycle == Cycle((0, 1), (Operation(group_key, 1), Operation(other, 1)))
    assert waits.roots() == (), "nobody waits for nobody"


def half(rank: int, kind: str, peer: int | None, seq: int = 1, **more: object) -> Call:
    return call(seq, 10, kind, 4, done=False, p2p=kind, peer=peer, **more)  # type: ignore[arg-type]


def test_a_send_waits_for_a_peer_that_has_not_posted_the_receive() -> None:
    waits, _ = graph({0: [half(0, "send", 1)], 1: []}, 2)
    assert waits.absent == {Operation(DEFAULT, -1, 1): (1,)} and waits.roots() == (1,)


def test_both_halves_posted_wait_for_nobody() -> None:
    ranks = {0: [half(0, "send", 1)], 1: [half(1, "recv", 0)]}
    waits, _ = graph(ranks, 2)
    assert set(waits.absent.values()) == {()} and waits.roots() == ()


def test_of_many_posted_messages_all_are_counted() -> None:
    """Only the first ones are kept: of a rank with two peers, fewer of each."""
    many = range(1, MAX_P2P + 1)
    between = [half(1, "recv", peer, seq=2 * seq + peer // 2) for seq in many for peer in (0, 2)]
    ends = {rank: [half(rank, "send", 1, seq=seq) for seq in many] for rank in (0, 2)}
    waits, _ = graph({**ends, 1: between}, 3)
    assert not waits.waited_for()
    waits, _ = graph({**ends, 1: between[:-2]}, 3)
    assert waits.waited_for() == {1}


def test_two_receives_wait_for_each_other() -> None:
    waits, _ = graph({0: [half(0, "recv", 1)], 1: [half(1, "recv", 0)]}, 2)
    (cycle,) = waits.cycles()
    assert cycle.ranks == (0, 1) and waits.reaching([0]) == {0, 1}


def test_halves_with_other_tags_do_not_meet() -> None:
    waits, _ = graph({0: [half(0, "send", 1, tag=1)], 1: [half(1, "recv", 0, tag=2)], 2: []}, 3)
    assert sorted(waits.absent.values()) == [(0,), (1,)]
    assert same_tag(half(0, "send", 1, tag=3), half(1, "recv", 0))


def test_a_receive_from_anybody_waits_for_nobody_in_particular() -> None:
    waits, _ = graph({0: [half(0, "recv", None)]}, 2)
    assert waits.unknown == {0} and waits.absent == {}


def test_a_rank_alone_in_an_undeclared_group_waits_for_the_only_candidate() -> None:
    waits, job = graph({0: waits_in(0, 1, GLOO), 1: [call(1)]}, 2)
    assert job.inferred == {GLOO: (0, 1)} and waits.absent[Operation(GLOO, 1)] == (1,)
    waits, job = graph({0: waits_in(0, 1, GLOO), 1: [call(1)], 2: [call(1)]}, 3)
    assert waits.unknown == {0} and not job.inferred


def test_all_that_were_seen_in_an_undeclared_group_lack_the_last_member() -> None:
    ranks = {rank: waits_in(rank, 2, GLOO, before=1) for rank in (0, 1)} | {2: [call(1)]}
    _, job = graph(ranks, 3)
    assert job.inferred == {GLOO: (0, 1, 2)}
    ranks[1] = [call(1, key=GLOO), call(2, key=GLOO)]
    _, job = graph(ranks, 3)
    assert not job.inferred, "the call completed on one of them"


EDGES = st.dictionaries(st.integers(0, 7), st.lists(st.integers(0, 7), max_size=3), max_size=8)


def closure(edges: dict[int, list[int]], start: int) -> set[int]:
    seen: set[int] = set()
    todo = list(edges.get(start, ()))
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += edges.get(node, ())
    return seen


@settings(max_examples=100)
@given(EDGES)
def test_knots_are_the_nodes_that_reach_each_other(edges: dict[int, list[int]]) -> None:
    reached = {node: closure(edges, node) for node in range(8)}
    together = {frozenset({b for b in range(8) if b in reached[a] and a in reached[b]} | {a}) for a in range(8)}
    assert {frozenset(knot) for knot in _components(edges)} == {knot for knot in together if len(knot) > 1}
    assert sorted(node for knot in _components(edges) for node in knot) == sorted(
        node for knot in together if len(knot) > 1 for node in knot
    )


def test_a_long_chain_needs_no_recursion() -> None:
    ring = {node: [(node + 1) % 20_000] for node in range(20_000)}
    (knot,) = _components(ring)
    assert len(knot) == 20_000


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=6))
def test_reaching_and_roots_agree_with_a_plain_closure(reached: list[int]) -> None:
    """Each rank stands at a position of one group: those further on wait for all behind them."""
    ranks = {rank: waits_in(rank, seq + 1, before=seq) if seq else [] for rank, seq in enumerate(reached)}
    waits, _ = graph(ranks, len(reached))
    edges: dict[int, list[int]] = {}
    for operation, absent in waits.absent.items():
        for rank in waits.waiting[operation]:
            edges.setdefault(rank, []).extend(absent)
    for root in range(len(reached)):
        assert waits.reaching([root]) == {rank for rank in ranks if root in closure(edges, rank)}
    least = min(reached)
    if least < max(reached) and not least:
        assert waits.roots() == tuple(rank for rank, seq in enumerate(reached) if not seq)


def test_a_stack_further_down_shows_who_joined_a_group_first() -> None:
    """Of gloo's numbered groups the dumps tell no members: rank 1 is in one, and rank 2 left no dump."""
    later = GroupKey("gloo", "2", "")
    ranks = {
        0: [call(1, 30, key=later, done=False, callers=[frame(90)])],
        1: [call(1, 20, key=GLOO, done=False, callers=[frame(90)])],
    }
    waits, job = graph(ranks, 3)
    assert waits.assumed == {2} and job.inferred[later] == (0, 1)


def test_where_calls_differ_waits_are_no_evidence() -> None:
    last = {0: 10, 1: 10, 2: 11, 3: 10}
    ranks = {rank: [call(1), call(2, size=size, done=False)] for rank, size in last.items()}
    waits, _ = graph(ranks)
    assert waits.differing == waits.incomparable() == {0, 1, 2, 3}
    alike = {rank: waits_in(rank, 2, before=1) for rank in range(4)}
    assert graph(alike)[0].differing == set()
    assert build(survey(alike, 4), {2}).differing == build(survey(alike, 4), {None}).differing == {0, 1, 2, 3}


def test_what_a_short_ring_lost_need_not_have_completed() -> None:
    """A ring of the last calls only: the pending one was overwritten too."""
    ranks = {rank: waits_in(rank, 7, before=6) for rank in (0, 1, 3)}
    ranks[2] = [call(seq, 10, done=False) for seq in (9, 10)]
    waits, job = graph(ranks, counters={DEFAULT: (10, 6)})
    operation = Operation(DEFAULT, 7)
    assert waits.complete[operation] == [] and waits.absent[operation] == (), "rank 2 issued #7"
    assert job.taken_earlier == []


def test_a_dump_older_than_what_others_completed_with_that_rank_is_no_hang() -> None:
    """Dumps of a job under way, whose file times were lost: rank 0 had not issued #5 yet when it was asked."""
    ahead = {rank: [call(seq) for seq in range(1, 6)] for rank in (1, 2, 3)}
    members = {DEFAULT: WORLD}
    _, job = graph({0: waits_in(0, 3, before=2), **ahead}, members=members)
    assert job.taken_earlier == [0]
    broadcasts = {rank: [call(seq, op="broadcast") for seq in range(1, 6)] for rank in WORLD[1:]}
    behind = [call(seq, op="broadcast", done=seq < 3) for seq in range(1, 4)]
    _, job = graph({0: behind, **broadcasts}, members=members)
    assert job.taken_earlier == [], "the source of a broadcast does not wait for the others"
