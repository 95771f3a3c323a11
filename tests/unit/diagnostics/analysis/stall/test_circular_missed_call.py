"""Circles over two groups: a rank that walked past a call of its loop, against groups used in swapped order."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.analysis import source_text
from tests.unit.diagnostics.hang.dumps import Job, Op, Shown, detect, evidence, write

GROUPS = {"1": [0, 1], "2": [2, 3]}
C = Op("barrier", line=30)


def step(rank: int) -> list[Op]:
    return [Op(group=str(1 + rank // 2), line=4, function="tp"), Op(size=9, line=5, function="dp")]


def programs(steps: int) -> dict[int, list[Op]]:
    return {rank: [*step(rank) * steps, C] for rank in range(4)}


def only(folder: Path, job: Job, **options: object) -> Shown:
    write(folder, job, **options)  # type: ignore[arg-type]
    (finding,) = [item for item in detect(evidence(folder, world_size=len(job.programs))) if item.status == "confirmed"]
    return finding


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("culprit", range(4))
@pytest.mark.parametrize("at", [1, 3])
def test_the_rank_that_went_on_without_a_call_of_the_world_is_alone_to_blame(
    tmp_path: Path, backend: str, culprit: int, at: int
) -> None:
    """Its neighbour in the small group waits in the world's call like everybody else."""
    calls = programs(5)
    del calls[culprit][2 * at + 1]
    finding = only(tmp_path, Job(calls, GROUPS, backend))
    assert (finding.cause, finding.ranks) == ("hang.conditional_collective", (culprit,))
    assert finding.victims == tuple(rank for rank in range(4) if rank != culprit)
    assert [(place.rank in finding.ranks, place.line) for place in finding.where] == [(True, 4), (False, 5)]
    assert finding.position == at + 1 and "skipped all_reduce [9] float32" in finding.summary


@pytest.mark.parametrize(
    ("calls_from", "cause", "sure"), [(0, "group_order", 0.6), (1, "conditional_collective", 0.85)]
)
def test_a_ring_that_wrapped_does_not_show_where_a_round_begins(
    tmp_path: Path, calls_from: int, cause: str, sure: float
) -> None:
    """Two functions may be called in either order, unless two lines of their caller show one."""
    calls = {rank: [replace(op, caller=calls_from and op.line) for op in own] for rank, own in programs(40).items()}
    del calls[2][71]
    finding = only(tmp_path, Job(calls, GROUPS, ring={0: 9, 1: 8, 2: 7, 3: 12}))
    assert (finding.cause, finding.ranks, finding.confidence) == (f"hang.{cause}", (2,), sure)


@pytest.mark.parametrize(("skipped", "cause"), [("tp", "group_order"), ("dp", "conditional_collective")])
def test_a_round_may_have_another_order_but_the_next_one_does_not_begin_before_its_end(
    tmp_path: Path, skipped: str, cause: str
) -> None:
    both = {"1": [0, 1, 2], "2": [0, 1, 2]}
    first, second = Op(group="1", line=4, function="tp"), Op(group="2", line=5, function="dp")
    calls = {rank: [first, second] * 5 for rank in range(3)}
    del calls[1][6 if skipped == "tp" else 7]
    finding = only(tmp_path, Job(calls, both))
    assert (finding.cause, finding.ranks) == (f"hang.{cause}", (1,))
    assert (finding.confidence < 0.7) == (cause == "group_order")


def test_two_ranks_that_walked_past_are_both_blamed_and_half_of_all_is_a_tie(tmp_path: Path) -> None:
    groups = {"1": [0, 1], "2": [2, 3], "3": [4, 5]}
    calls = {rank: [*step(rank) * 5, C] for rank in range(6)}
    del calls[0][7], calls[2][7]
    finding = only(tmp_path / "six", Job(calls, groups))
    assert (finding.cause, finding.ranks) == ("hang.conditional_collective", (0, 2))
    both = {"1": [0, 1], "2": [0, 1]}
    pair = [Op(group="1", line=4), Op(group="2", line=5)]
    finding = only(tmp_path / "two", Job({0: [*pair * 5, C], 1: [*pair * 3, pair[0], *pair, C]}, both))
    assert (finding.cause, finding.ranks) == ("hang.conditional_collective", (0, 1))
    assert "tie" in finding.summary


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("how", ["other lines", "other caller", "one line for both"])
def test_groups_used_the_other_way_round_in_one_round_stay_an_order(tmp_path: Path, backend: str, how: str) -> None:
    both = {"1": [0, 1], "2": [0, 1]}
    first, second = Op(group="1", line=4, function="tp"), Op(group="2", line=5, function="dp")
    if how == "one line for both":
        second = replace(first, group="2")
    turned = [second, first]
    if how == "other lines":
        turned = [replace(op, line=op.line + 10) for op in turned]
    elif how == "other caller":
        turned = [replace(op, caller=77) for op in turned]
    original = [first, second] * 5
    calls = {0: [*original, C], 1: [*original[:6], *turned, *original[8:], C]}
    finding = only(tmp_path, Job({**calls, 2: [C], 3: [C]}, both, backend))
    assert (finding.cause, finding.ranks) == ("hang.group_order", (1,))


PROGRAM = """\
def train():
    for step in range(9):
        dist.all_reduce(x, group=dp)
        if rank == 0:
            dist.barrier()
            dist.all_reduce(x, group=dp)
        {other}:
            dist.all_reduce(x, group=dp)
            dist.barrier()
"""


@pytest.mark.parametrize(("other", "cause"), [("if True", "conditional_collective"), ("else", "group_order")])
def test_a_call_of_another_group_that_the_text_gives_to_one_rank_is_no_order_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, cause: str
) -> None:
    """As a library's checkpoint on rank 0 does, which waits for all in a barrier of the default group."""
    tree = ast.parse(PROGRAM.format(other=other))
    monkeypatch.setattr(source_text, "_tree", lambda file, before_s: tree if file == "/job/train.py" else None)
    dp = Op(size=9, line=3, group="1")
    calls = {rank: [*[dp] * 4, replace(dp, line=8 if other == "else" else 3)] for rank in (1, 2)}
    calls[0] = [*[dp] * 4, Op("barrier", line=5)]
    finding = only(tmp_path, Job(calls, {"1": [0, 1, 2]}, "gloo"))
    assert (finding.cause, finding.ranks) == (f"hang.{cause}", (0,))
