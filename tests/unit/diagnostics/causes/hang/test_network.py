"""All ranks of a group are in the same collective and none comes out of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.causes.hang.network import never_complete
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import RankError
from tests.unit.diagnostics.analysis.calls import START_S, call, fact, job as state_of, waiting
from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.network"


def test_nobody_is_blamed_and_all_are_victims(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[STEP * 2] * 4, nobody_completes=4, timed=True), CAUSE)
    assert (result.status, result.ranks, result.victims, result.position) == ("confirmed", (), (0, 1, 2, 3), 4)
    assert (
        result.summary.startswith("All 4 ranks of the group agree: they are in all_gather")
        and result.confidence == 0.75
    )
    assert "first collective" not in result.summary and result.measured.endswith("in the same collective, 0 completed")


def test_the_first_collective_of_a_group_may_lack_its_connections(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[STEP] * 2, nobody_completes=1), CAUSE)
    assert "It is the group's first collective" in result.summary


def test_ranks_that_disagree_are_no_fault_of_the_network(tmp_path: Path) -> None:
    result = finding(tmp_path, job(STEP * 2, STEP), CAUSE)
    assert result.status != "confirmed"


def test_where_no_dump_shows_what_devices_began_one_of_them_may_be_stuck(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[STEP * 2] * 4, nobody_completes=4), CAUSE)
    assert result.confidence == 0.45 and "the device of one of them is stuck in earlier work" in result.summary


def test_a_call_that_waits_behind_another_one_on_a_device_is_an_effect(tmp_path: Path) -> None:
    """All ranks issued both calls; the second group's call comes after one that never completes."""
    program = [*STEP, Op(line=12, wait=False), Op(line=20, size=4, group="{}", wait=False)]
    ranks = [[*program[:-1], replace(program[-1], group=group)] for group in ("1", "1", "2", "2")]
    groups = {"1": [0, 1], "2": [2, 3]}
    result = finding(tmp_path, job(*ranks, groups=groups, nobody_completes=3, timed=True), CAUSE)
    assert (result.status, result.victims) == ("confirmed", (0, 1, 2, 3))


def test_an_all_to_all_with_splits_that_differ_may_not_fit(tmp_path: Path) -> None:
    ranks = [[*STEP, Op("all_to_all", size, 16)] for size in (8, 8, 12)]
    assert finding(tmp_path, job(*ranks, nobody_completes=3, timed=True), CAUSE).status != "confirmed"


def test_a_collective_that_all_are_in_and_none_completes() -> None:
    state = state_of({rank: waiting(3) for rank in range(3)}, 3, facts=[fact("nccl_ib_error", 1), fact("nccl_net", 0)])
    (case,) = never_complete(state)
    assert case.ranks == (0, 1, 2) and case.operation.seq == 3 and not case.first
    assert [item.kind for item in case.transport] == ["nccl_ib_error"]
    (first,) = never_complete(state_of({rank: waiting(1) for rank in range(3)}, 3))
    assert first.first


@pytest.mark.parametrize(("size", "expected"), [(8, [((0, 1), False)]), (4, [])])
def test_a_message_that_both_ranks_posted_and_that_others_wait_behind(size: int, expected: list[object]) -> None:
    def half(op: str, peer: int, size: int = 8) -> list[Call]:
        return [call(1), call(1, 20, op, size, done=False, p2p=op, peer=peer, at_s=START_S + 2)]

    cases = never_complete(state_of({0: half("send", 1), 1: half("recv", 0, size), 2: half("recv", 1)}, 3))
    assert [(case.ranks, case.begun) for case in cases] == expected


@pytest.mark.parametrize("ranks", [(0, 1), (0,)])
def test_while_somebody_is_missing_nothing_is_said_of_the_network(ranks: tuple[int, ...]) -> None:
    assert never_complete(state_of({rank: waiting(3) for rank in ranks}, 3)) == []


def test_calls_that_differ_and_what_the_recorder_cannot_tell_are_left_out() -> None:
    differ = {0: waiting(3), 1: [call(1), call(2, size=9), call(3, done=False)]}
    assert never_complete(state_of(differ, 2)) == []
    unknown = {rank: waiting(3, completion_known=False) for rank in range(2)}
    assert never_complete(state_of(unknown, 2)) == []


@pytest.mark.parametrize(("late_s", "open_"), [(24.0, 1), (25.4, 0), (60.0, 0)])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_call_that_others_had_given_up_when_the_last_rank_came(late_s: float, open_: int, recorded: bool) -> None:
    """Their timeout is that of the call, or the time of their error, by their own clock and not by a log's zone."""
    own: dict[str, float] = {"timeout_s": 25.0} if recorded else {}
    ranks = {rank: waiting(3) for rank in range(3)}
    for rank, calls in ranks.items():
        calls[-1] = call(3, done=False, at_s=START_S + 3 + late_s * (rank == 2), **own)
    text = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 25000ms for recv operation to complete"
    error = RankError(0, "error.json", 0, "RuntimeError", text, time_s=START_S + 28)
    in_log = RankError(0, "train.log", 9, "RuntimeError", text, time_s=START_S - 7200)
    assert len(never_complete(state_of(ranks, 3, errors=[in_log if recorded else error]))) == open_
