"""Findings about messages between two ranks: which ranks they blame, how sure they are, and what they cite."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.pairwise import Case, Misfit, Pairs, pairs
from diagnostics.analysis.run_records import layout
from diagnostics.analysis.stall.circular import OutOfStep, PointToPoint, circular_waits
from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.rounds import Departure
from diagnostics.analysis.wait_graph.graph import Cycle
from diagnostics.causes.hang._messages import figures, finding, places, seen
from diagnostics.contract.findings import ASSUMED, SEEN, Finding, Text
from diagnostics.evidence.calls import Call
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from tests.unit.diagnostics.analysis.calls import call, job, waiting
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.ring_bytes import RingCall, ring

FACTS = Text("They wait.")


DEPARTS = Departure("order", call(1), call(2, 20), Counter())


def half(kind: str, peer: int, line: int | None = 10, **more: Any) -> list[Call]:
    return [call(1, line, kind, 4, done=False, p2p=kind, peer=peer, **more)]


def wait_of(calls: Mapping[int, list[Call]]) -> tuple[Stall, PointToPoint]:
    stall = Stall(state := job(calls, len(calls)), circular=tuple(circular_waits(state)))  # type: ignore[arg-type]
    (case,) = stall.circular
    assert isinstance(case, PointToPoint)
    return stall, case


def case_of(calls: Mapping[int, Call], in_collectives: Mapping[int, Call], **more: Any) -> PointToPoint:
    cycle = Cycle((*calls, *in_collectives), ())
    return PointToPoint(cycle, tuple(calls.items()), tuple(in_collectives.items()), **more)


def finding_of(calls: Mapping[int, list[Call]], **more: Any) -> Finding:
    """The finding about these ranks' waits, of which the case has other fields."""
    stall, case = wait_of(calls)
    changed = PointToPoint(case.cycle, case.calls, case.in_collectives, **more)
    return finding(stall, changed, FACTS)


RING = {rank: half("recv", (rank + 1) % 3) for rank in range(3)}
BEHIND = {0: waiting(1), 1: half("recv", 0), 2: half("recv", 1)}
"""Rank 0 is in a collective, and the others wait for messages."""


def test_a_cycle_of_messages_that_all_make_first_is_proof_against_all_of_its_ranks() -> None:
    finding = finding_of(RING, confidence=SEEN)
    assert (finding.ranks, finding.victims, finding.confidence, finding.facts) == ((0, 1, 2), (), SEEN, FACTS)
    assert [(place.rank, place.line, str(place.does)) for place in finding.where] == [
        (rank, 10, "waits in recv [4]") for rank in range(3)
    ]


def test_beside_a_collective_either_side_may_be_the_wrong_one() -> None:
    """Both ends of the message are named; who waits for one of them is a victim."""
    finding = finding_of(BEHIND)
    assert (finding.ranks, finding.victims, finding.confidence) == ((0, 1), (2,), ASSUMED)
    assert [place.rank for place in finding.where] == [0, 1, 2]
    assert str(finding.where[0].does) == "waits in all_reduce [8] instead of the other half"


def test_the_rank_that_left_some_out_is_to_blame_alone() -> None:
    finding = finding_of(BEHIND, out_of_step=(OutOfStep(0, None, 1, 2),))
    assert (finding.ranks, finding.victims) == ((0,), (1, 2))
    assert [place.rank for place in finding.where] == [0, 1, 2], "its place comes first"


def test_in_a_schedule_the_fewer_ranks_in_other_calls_deviate() -> None:
    assert finding_of(BEHIND, scheduled=True).ranks == (0,)
    pair = {0: waiting(1), 1: half("recv", 0)}
    assert finding_of(pair, scheduled=True).ranks == finding_of(pair).ranks == (0, 1), "one against one decides nothing"


def test_a_schedule_leaves_open_which_rank_of_a_cycle_deviates() -> None:
    finding = finding_of(RING, scheduled=True)
    assert (finding.ranks, finding.confidence) == ((0, 1, 2), ASSUMED)


def test_ranks_that_wait_for_the_cycle_are_victims() -> None:
    finding = finding_of({0: half("recv", 1), 1: half("recv", 0), 2: half("recv", 1)})
    assert (finding.ranks, finding.victims) == ((0, 1), (2,))


@pytest.mark.parametrize(
    ("case", "row"),
    [
        (case_of({0: half("recv", 1)[0], 1: half("recv", 0)[0]}, {}, confidence=SEEN), "cycle"),
        (case_of({0: half("recv", 1)[0], 1: half("recv", 0)[0]}, {}), "unclear"),
        (case_of({0: half("send", 1, tag=1)[0], 1: half("recv", 0, tag=2)[0]}, {}, tags_differ=True), "tags"),
        (case_of({0: half("recv", 1)[0]}, {1: call(1)}), "one_sided"),
        (case_of({0: half("recv", 1)[0]}, {1: call(1)}, out_of_step=(OutOfStep(1, DEPARTS),)), "departs"),
        (case_of({0: half("recv", 1)[0]}, {1: call(1)}, out_of_step=(OutOfStep(1, None, 1, 2),)), "rounds"),
    ],
)
def test_the_row_of_each_kind(case: PointToPoint, row: str) -> None:
    assert figures(case)["said"] == row


@pytest.mark.parametrize(("kind", "other"), [("send", "receive from rank 0"), ("recv", "send to rank 0")])
def test_the_other_half_is_that_which_the_peer_owes(kind: str, other: str) -> None:
    text = figures(case_of({0: half(kind, 1)[0]}, {1: call(3, 20)}))
    assert str(text["half"]) == other
    assert (text["rest"], text["instead"]) == ([1], "all_reduce [8] (#3, train.py:20)")


def test_the_peers_own_call_says_before_what_the_other_half_belongs() -> None:
    _, case = wait_of(BEHIND)
    assert figures(case)["before"] == " before all_reduce [8] (#1, train.py:10)"


@pytest.mark.parametrize(("count", "links"), [(8, 8), (9, 9), (12, 9)])
def test_of_a_long_cycle_only_some_ranks_are_named(count: int, links: int) -> None:
    chain = figures(case_of({rank: half("recv", (rank + 1) % count)[0] for rank in range(count)}, {}))["chain"]
    assert len(chain) == links and str(chain[0]) == "rank 0 receives from rank 1 (train.py:10)"
    assert count == 8 or str(chain[-1]) == f"and {count - 8} more"


def test_lines_are_named_once_and_only_if_they_are_recorded() -> None:
    def places_of(*lines: int | None) -> tuple[str, str]:
        calls = {rank: half("recv", 1 - rank, line)[0] for rank, line in enumerate(lines)}
        result = figures(case_of(calls, {}))
        return result["places"], result["at"]

    assert places_of(10, 10) == ("/job/train.py:10", "train.py:10")
    assert places_of(10, 20) == ("/job/train.py:10 and /job/train.py:20", "train.py:10")
    assert places_of(None, 20) == ("/job/train.py:20", "these calls")
    assert places_of(None, None) == ("both calls", "these calls")


def misfitting(folder: Path, culprits: tuple[int, ...], lines: Mapping[int, int]) -> tuple[Pairs, Case]:
    """Rank 0 sends to each of the others, none of which expects as much."""
    world = len(lines)
    files = {
        f"flight/rank_{rank:05d}.ring": ring(rank, world, [RingCall("isend", 4, 1)], line)
        for rank, line in lines.items()
    }
    Example(lambda: files).write(folder)
    calls = pairs(gather(folder, Limits()))
    assert layout(calls.evidence) is None and set(calls.records) == set(lines)
    records = {rank: record[0] for rank, record in calls.records.items()}
    misfits = tuple(Misfit(0, rank, 4, rank, (records[0], records[rank])) for rank in range(1, world))
    return calls, Case(misfits, culprits, tuple(lines))


def test_the_places_of_misfits_are_those_of_the_culprits_first(tmp_path: Path) -> None:
    _, case = misfitting(tmp_path, (2,), {0: 10, 1: 11, 2: 12})
    assert [(place.rank, place.line, place.does) for place in places(case)] == [
        (2, 12, "isend"), (0, 10, "isend"), (1, 11, "isend"),
    ]  # fmt: skip


def test_of_many_misfits_some_are_shown_each_by_the_receivers_ring(tmp_path: Path) -> None:
    calls, case = misfitting(tmp_path, (6,), {rank: 10 + rank for rank in range(7)})
    assert [place.rank for place in places(case)] == [6, 0, 1, 2]
    items = seen(calls, case, "rows")
    assert [item.file for item in items] == [f"flight/rank_0000{rank}.ring" for rank in range(1, 5)]
    assert str(items[0].detail) == "rank 1 expects 1 rows of rank 0, which sends 4"
