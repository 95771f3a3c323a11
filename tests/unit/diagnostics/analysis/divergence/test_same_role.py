"""Ranks of one role in groups of their own: who deviates where each group alone shows a tie or a cycle of waits."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence import same_role
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.stall import job_state
from tests.unit.diagnostics.hang.dumps import Job, Op, detect, evidence, write

PAIRS = {str(1 + pair): [2 * pair, 2 * pair + 1] for pair in range(4)}
"""Groups of two, as of tensor parallelism with a degree of 2 on 8 ranks."""
TP = dict.fromkeys(PAIRS, "tp")


def step(rank: int, lines: tuple[int, ...] = (12, 14, 16)) -> list[Op]:
    """One step: calls of three lines in the pair's group, of different sizes, and one of all ranks."""
    own = [Op(size=line, line=line, group=str(1 + rank // 2)) for line in lines]
    return [*own, Op(size=1, line=30)]


def played(changed: dict[int, list[Op]], steps: int = 6, **more: object) -> Job:
    """Return a job of 8 ranks; `changed`: rank -> its last step."""
    programs = {rank: [*step(rank) * steps, *changed.get(rank, step(rank))] for rank in range(8)}
    return Job(programs, PAIRS, descriptions=TP, **more)


def divergence_of(folder: Path, job: Job) -> Divergence | None:
    write(folder, job)
    state = job_state.build(evidence(folder, world_size=8))
    return same_role.find(state.survey, state.reading.history, "nccl", state.survey.ranks)


def test_a_pair_has_no_majority_and_its_counterparts_have(tmp_path: Path) -> None:
    case = divergence_of(tmp_path, played({3: step(3, (12, 16))}))
    assert case is not None and (case.culprits, case.kind, case.tie) == ((3,), "left_out", False)
    assert (case.majority.site.line, case.minority.site.line, case.majority_rank) == (14, 16, 2)


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ([Op(size=7, line=50), *step(5)], "added"),
        ([Op(size=12, line=12, group="3"), Op(size=99, line=14, group="3"), *step(5)[2:]], "other_arguments"),
        ([Op("broadcast", 12, 12, "3"), *step(5)[1:]], "other_operation"),
    ],
)
def test_the_kinds_are_those_of_any_divergence(tmp_path: Path, last: list[Op], kind: str) -> None:
    case = divergence_of(tmp_path, played({5: last}))
    assert case is not None and (case.culprits, case.kind) == ((5,), kind)


def test_a_rank_that_waits_in_a_group_where_nobody_differs(tmp_path: Path) -> None:
    save = Op(size=2, line=60, function="save")
    case = divergence_of(tmp_path, played({6: [save]}))
    assert case is not None and (case.culprits, case.minority.key.name, case.majority.key.name) == ((6,), "0", "4")
    (cause,) = (finding for finding in detect(evidence(tmp_path, world_size=8)) if finding.status == "confirmed")
    assert (cause.cause, cause.ranks) == ("hang.conditional_collective", (6,))


def test_roles_that_part_in_every_step_are_no_deviation(tmp_path: Path) -> None:
    """Rank 0's pair logs in each step, and the last pair makes another call: neither is a fault."""
    programs = {}
    for rank in range(8):
        own = [*step(rank), *[Op(size=5, line=40, group="1")] * (rank < 2)]
        own[0:1] = [Op("broadcast", 12, 12, own[0].group)] if rank > 5 else own[0:1]
        programs[rank] = own * 6
    assert divergence_of(tmp_path, Job(programs, PAIRS, descriptions=TP)) is None


def test_what_a_whole_group_does_once_is_its_own_matter(tmp_path: Path) -> None:
    alone = [Op(size=5, line=40, group="1")]
    programs = {rank: [*step(rank) * 5, *alone * (rank < 2), *step(rank)] for rank in range(8)}
    programs[4] = programs[4][:-2]
    assert divergence_of(tmp_path, Job(programs, PAIRS, descriptions=TP)) is None


def test_two_ranks_are_a_tie(tmp_path: Path) -> None:
    job = Job({0: step(0) * 6, 1: [*step(1) * 5, *step(1, (12, 16))]}, {"1": [0, 1]}, descriptions=TP)
    case = divergence_of(tmp_path, job)
    assert case is not None and case.tie and case.culprits == (0, 1)


def test_other_groups_of_the_kind_tell_which_side_of_a_tie_is_usual(tmp_path: Path) -> None:
    """As the replicas of each stage of a pipeline, whose messages make the programs of the stages differ."""
    groups = {name: ranks for name, ranks in PAIRS.items() if ranks[1] < 6}
    programs = {rank: [Op(size=9, line=12, group=str(1 + rank // 2))] * 8 for rank in range(6)}
    programs[3][-1] = replace(programs[3][-1], name="broadcast")
    write(tmp_path, Job(programs, groups, descriptions=TP))
    (cause,) = (finding for finding in detect(evidence(tmp_path, world_size=6)) if finding.status == "confirmed")
    assert (cause.cause, cause.ranks) == ("hang.collective_mismatch", (3,))


def test_a_late_rank_elsewhere_does_not_make_a_cycle_one_of_two_orders(tmp_path: Path) -> None:
    """Rank 5 leaves its loop early; rank 1 is in no recorded call, as in a message that the recorder leaves out."""
    columns = {str(5 + column): [first, first + 2] for column, first in enumerate((0, 1, 4, 5))}
    column = {rank: name for name, ranks in columns.items() for rank in ranks}
    gradient = {rank: Op(size=9, line=30, group=name) for rank, name in column.items()}
    tensors = {rank: step(rank)[:3] for rank in column}
    last = {rank: [*calls[:2], gradient[rank], calls[2], gradient[rank]] for rank, calls in tensors.items()}
    programs = {rank: [*calls * 2, *last[rank]] * 3 for rank, calls in tensors.items()}
    programs[1] = programs[1][:-9]
    programs[5] = [*programs[5][:-8], *last[5]]
    described = TP | dict.fromkeys(columns, "dp")
    write(tmp_path, Job(programs, PAIRS | columns, descriptions=described))
    confirmed = [finding for finding in detect(evidence(tmp_path, world_size=8)) if finding.status == "confirmed"]
    assert sorted(item.ranks for item in confirmed) == [(1,), (5,)]  # It was all of 4 to 7, for the order of groups.


def test_of_a_large_job_the_ranks_in_question_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_role, "MOST_RANKS", 4)
    write(tmp_path, played({7: step(7, (12, 16))}))
    (cause,) = (finding for finding in detect(evidence(tmp_path, world_size=8)) if finding.status == "confirmed")
    assert (cause.cause, cause.ranks) == ("hang.conditional_collective", (7,))


ORDERS = """\
def train():
    for step in range(9):
        if rank == 5 and step == 6:
            {first}
            all_reduce(group=own)
        {other}:
            all_reduce(group=own)
            all_reduce()
"""


@pytest.mark.parametrize(("other", "added"), [("else", False), ("if True", True)])
def test_the_same_call_of_a_branch_with_another_order_is_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, added: bool
) -> None:
    tree = ast.parse(ORDERS.format(first="all_reduce()", other=other))
    monkeypatch.setattr(source_text, "_tree", lambda file, before_s: tree if file == "/job/train.py" else None)
    programs = {rank: [Op(size=7, line=7, group=str(1 + rank // 2)), Op(size=8, line=8)] * 7 for rank in range(8)}
    programs[5][-2:] = [Op(size=8, line=4), Op(size=7, line=5, group="3")]
    case = divergence_of(tmp_path, Job(programs, PAIRS, descriptions=TP))
    assert (case is not None) == added and (case is None or case.culprits == (5,))
