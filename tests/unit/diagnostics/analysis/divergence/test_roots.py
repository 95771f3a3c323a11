"""Rooted collectives that complete on some ranks only: who named another root."""

from diagnostics.analysis.stall.explain import roots_differ
from diagnostics.contract.findings import OPEN, POSSIBLE
from diagnostics.evidence.calls import GroupKey
from tests.unit.diagnostics.analysis.calls import call, job

GLOO = GroupKey("gloo", "0", "default_pg")


def broadcast(rank_done: bool, root: int | None = None) -> list:
    return [call(1, op="broadcast", key=GLOO, done=rank_done, wire={"root": root})]


def test_a_broadcast_that_some_completed_shows_ranks_with_different_roots() -> None:
    ranks = {0: broadcast(True), 1: broadcast(False), 2: broadcast(True), 3: broadcast(False)}
    (case,) = roots_differ(job(ranks, 4))
    assert (case.kind, case.position, case.vote.present) == ("other_arguments", 1, (0, 1, 2, 3))
    assert case.culprits == (3,), "gloo's tree: rank 3 with another root leaves 1 and 3 stuck"
    assert (case.peers, case.tie, case.confidence) == ((0, 1, 2), False, POSSIBLE)
    two = {0: broadcast(True), 1: broadcast(False)}
    (open_,) = roots_differ(job(two, 2))
    assert (open_.culprits, open_.tie, open_.confidence) == ((1,), True, OPEN)
    differ = {rank: [call(1, key=GLOO, size=rank), *calls] for rank, calls in ranks.items()}
    assert roots_differ(job(differ, 4)) == []


def test_a_recorded_root_or_an_operation_without_one_is_another_matter() -> None:
    assert roots_differ(job({0: broadcast(True, 0), 1: broadcast(False, 0)}, 2)) == []
    nobody = {rank: broadcast(False) for rank in range(3)}
    assert roots_differ(job(nobody, 3)) == [], "where nobody completed, the root need not differ"
    ranks = {0: [call(1, key=GLOO)], 1: [call(1, key=GLOO, done=False)]}
    assert roots_differ(job(ranks, 2)) == []
