"""A send or receive that waits for a half that is never posted."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.p2p_cycle"


def test_receives_in_a_ring(tmp_path: Path) -> None:
    programs = [
        [Op("recv", line=70, peer=(rank - 1) % 3), Op("send", line=71, peer=(rank + 1) % 3)] for rank in range(3)
    ]
    result = finding(tmp_path, job(*programs), CAUSE)
    assert (result.status, result.ranks, result.confidence) == ("confirmed", (0, 1, 2), 0.95)
    assert "wait for each other in a cycle: rank 0 receives from rank 2 (train.py:70)" in result.summary
    assert result.measured == "cycle of 3 ranks" and "batch_isend_irecv, at train.py:70" in result.remedies[0].change


def test_a_one_sided_receive_names_what_the_peer_does_instead(tmp_path: Path) -> None:
    result = finding(tmp_path, job([*STEP, Op("recv", line=70, peer=1)], [*STEP, Op("barrier", line=30)]), CAUSE)
    assert result.status == "confirmed" and result.summary.startswith("A one-sided call: rank 0 receives from rank 1")
    assert (
        "make rank 1 send to rank 0" in result.remedies[0].change and "remove the recv at" in result.remedies[0].change
    )


def test_who_posts_fewer_halves_than_in_the_round_before_is_to_blame(tmp_path: Path) -> None:
    receive, send, end = Op("recv", line=70, peer=1), Op("send", line=71, peer=0), Op("barrier", line=80)
    whole = [receive, receive, end], [send, send, end]
    result = finding(tmp_path, job([*whole[0] * 3, *whole[0]], [*whole[1] * 3, send, end]), CAUSE)
    assert (result.status, result.ranks, result.victims) == ("confirmed", (1,), (0,)) and result.where[0].line == 80
    end = "it made barrier at /job/train.py:80, where it made send [8] float32 before."
    assert result.summary.endswith(f"Rank 1 departs from its own earlier rounds: {end}")


def test_who_waits_for_one_more_half_than_in_the_round_before_is_to_blame(tmp_path: Path) -> None:
    receive, send, end = Op("recv", line=70, peer=1), Op("send", line=71, peer=0), Op("barrier", line=80)
    result = finding(tmp_path, job([*[receive, end] * 3, receive, receive], [send, end] * 4), CAUSE)
    assert (result.status, result.ranks, result.victims) == ("confirmed", (0,), (1,))
    assert "in the one before" not in result.summary


def stages(world: int, steps: int, differing: int, other: int, per_round: int = 4) -> list[list[Op]]:
    """Stages of a pipeline of the job's own: all forward, then all backward; one differs in the last step."""
    programs = []
    for rank in range(world):
        before, after = [Op("recv", line=70, peer=rank - 1)], [Op("send", line=71, peer=rank + 1)]
        forward = [*(before if rank else []), *(after if rank < world - 1 else [])]
        back, on = [Op("recv", line=80, peer=rank + 1)], [Op("send", line=81, peer=rank - 1)]
        backward = [*(back if rank < world - 1 else []), *(on if rank else [])]
        counts = [per_round] * (steps - 1) + [other if rank == differing else per_round]
        programs.append([op for count in counts for op in (*forward * count, *backward * count)])
    return programs


@pytest.mark.parametrize("before", [4, 8, 2])  # A job may change the number for all stages.
@pytest.mark.parametrize(("differing", "other"), [(0, 3), (1, 3), (3, 3), (2, 5), (3, 5)])
def test_a_stage_that_makes_fewer_or_more_calls_than_most_is_the_one_at_fault(
    tmp_path: Path, differing: int, other: int, before: int
) -> None:
    earlier = stages(4, 2, -1, 0, before)
    played = job(*[first + last for first, last in zip(earlier, stages(4, 1, differing, other), strict=True)])
    result = finding(tmp_path, played, "hang.pipeline_mismatch")
    assert (result.status, result.ranks) == ("confirmed", (differing,)) and "micro-batches" in result.remedies[0].change
    assert finding(tmp_path, played, CAUSE).status != "confirmed"


def without(programs: list[list[Op]], rank: int, line: int, nth: int) -> list[list[Op]]:
    """The same programs, of which one rank leaves out its nth call at a line."""
    at = [number for number, op in enumerate(programs[rank]) if op.line == line][nth]
    programs[rank] = programs[rank][:at] + programs[rank][at + 1 :]
    return programs


@pytest.mark.parametrize(("rank", "line"), [(1, 71), (2, 71), (1, 81), (2, 81)])
@pytest.mark.parametrize("nth", [8, 10])
def test_a_rank_that_skips_one_message_of_its_earlier_rounds_is_at_fault(
    tmp_path: Path, rank: int, line: int, nth: int
) -> None:
    result = finding(tmp_path, job(*without(stages(4, 4, -1, 0), rank, line, nth)), CAUSE)
    assert (result.status, result.ranks, result.confidence) == ("confirmed", (rank,), 0.8)
    assert f"Rank {rank} departs from its own earlier rounds" in result.summary


def test_where_all_change_their_rounds_only_one_comes_to_an_order_of_its_own(tmp_path: Path) -> None:
    programs = [
        first + last for first, last in zip(stages(4, 3, -1, 0), without(stages(4, 1, -1, 0, 6), 1, 71, 2), strict=True)
    ]
    result = finding(tmp_path, job(*programs), CAUSE)
    assert (result.status, result.ranks, result.confidence) == ("confirmed", (1,), 0.65)


def test_in_a_first_round_nothing_tells_who_skipped_a_message(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*without(stages(4, 1, -1, 0), 1, 71, 0)), CAUSE)
    assert (result.status, result.ranks, result.confidence) == ("confirmed", (1, 2), 0.65)
    assert "does not show whether their order is wrong" in result.summary and len(result.remedies) == 2


@pytest.mark.parametrize(("differing", "number"), [(1, 7), (0, 5), (0, 7)])
def test_the_end_of_a_first_steady_state_is_no_departure(tmp_path: Path, differing: int, number: int) -> None:
    """Stages of 1F1B first repeat a forward and a backward, and then make backwards alone, as all in good order do."""
    programs = []
    for rank in range(3):
        forward = [Op("recv", line=70, peer=rank - 1)] if rank else []
        forward += [Op("send", line=71, peer=rank + 1, wait=False)] if rank < 2 else []
        backward = [Op("recv", line=80, peer=rank + 1)] if rank < 2 else []
        backward += [Op("send", line=81, peer=rank - 1, wait=False)] if rank else []
        warm, steady = 2 - rank, (number if rank == differing else 6) - 2 + rank
        programs.append([*forward * warm, *(forward + backward) * steady, *backward * warm] * 2)
    result = finding(tmp_path, job(*programs), CAUSE)
    assert (result.status, result.ranks, result.confidence) == ("confirmed", (0, 1), 0.65)


@pytest.mark.parametrize("other", [3, 5])
def test_pipelines_beside_each_other_are_not_compared(tmp_path: Path, other: int) -> None:
    """Two pipelines have other numbers of micro-batches, and a stage of the first departs from its own."""
    first, second = stages(2, 3, 1, other), stages(2, 3, -1, 0, 6)
    moved = [[replace(op, peer=(op.peer or 0) + 2) for op in program] for program in second]
    result = finding(tmp_path, job(*first, *moved), "hang.pipeline_mismatch")
    assert (result.status, result.ranks, result.confidence) == ("confirmed", (1,), 0.7)


@pytest.mark.parametrize("world", [3, 4])
def test_a_call_of_one_ranks_own_is_no_matter_of_micro_batches(tmp_path: Path, world: int) -> None:
    """The last stage receives once more, at a line of its own, in the middle of its round."""
    programs = stages(world, 4, -1, 0)
    forward = len(programs[-1]) // 4 // 2
    programs[-1].insert(3 * len(programs[-1]) // 4 + forward, Op("recv", line=75, peer=world - 2))
    result = finding(tmp_path, job(*programs), CAUSE)
    assert (result.status, set(result.ranks)) == ("confirmed", {world - 2, world - 1})


@pytest.mark.parametrize("rounds", [0, 3])
def test_of_two_ranks_that_send_first_neither_is_alone_at_fault(tmp_path: Path, rounds: int) -> None:
    """Nor where earlier rounds were in order: the call in which one waits at another line makes no longer row."""
    programs = []
    for rank in (0, 1):
        send, receive = Op("send", line=70, peer=1 - rank), Op("recv", line=71, peer=1 - rank)
        order = [[send] * 2 + [receive] * 2, [receive] * 2 + [send] * 2][rank]
        programs.append([*order * rounds, Op("send", line=90, peer=1 - rank), Op("recv", line=91, peer=1 - rank)])
    result = finding(tmp_path, job(*programs), CAUSE)
    assert (result.status, result.ranks) == ("confirmed", (0, 1))


def test_halves_that_meet_are_none(tmp_path: Path) -> None:
    result = finding(tmp_path, job([Op("send", line=7, peer=1)], [Op("recv", line=8, peer=0)]), CAUSE)
    assert result.status == "ruled_out"


def test_gloos_recorder_leaves_sends_out_so_it_stays_open(tmp_path: Path) -> None:
    result = finding(tmp_path, job(STEP, STEP, backend="gloo"), CAUSE)
    assert (
        result.status == "undecided" and "send and recv are not recorded on gloo" in result.summary and result.missing
    )
