"""Ranks of a running job that wait in calls of different groups, and what their connections and the text show."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.evidence.model import Frame, LogFact, Stacks
from tests.unit.diagnostics.analysis.stall.test_from_observations import findings_of, rank
from tests.unit.diagnostics.analysis.stall.test_stack_evidence import inside

Rank = tuple[list[Stacks], list[LogFact]]
SCRIPT = """\
def train(rank, tp, dp):
    for group in (tp, dp) if rank else (dp, tp):
        all_reduce(group)
    all_reduce(tp)
    barrier()
    if rank == 0:
        all_reduce(tp)
    if rank == 1:
        all_reduce(dp)
    for step in range(9):
        all_reduce(tp)
        barrier()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def at(path: Path, number: int, line: int, variable: str = "", step: int | None = None, **more: Any) -> Rank:
    """A rank at a line; of the job's three groups, ranks 0 and 1 share all, the others the first one."""
    op = "all_reduce" if variable else "barrier"
    call = {"op": op, "group": "other", "name": f"train:{variable}"} if variable else {"op": op, "group": "default"}
    in_pair = number < 2
    peers = {peer: 3 if in_pair and peer < 2 else 1 for peer in range(4) if peer != number}
    counters = {} if step is None else {(str(path), "train"): {"step": step}}
    record = {"call": call, "groups": 3 if in_pair else 1, "connections": peers, "counters": counters} | more
    return rank(number, inside(op, (Frame(str(path), line, "train"),)), **record)


def test_one_line_in_two_groups_is_another_order(script: Path) -> None:
    rest = [at(script, number, 5) for number in (2, 3)]
    said = findings_of(at(script, 0, 3, "dp"), at(script, 1, 3, "tp"), *rest)
    assert set(said) == {"group_order"} and said["group_order"].ranks == (0, 1)
    assert said["group_order"].confidence == 0.6 and said["group_order"].victims == (2, 3)
    assert "rank 0 waits for rank 1 in all_reduce (train.py:3) of group dp" in said["group_order"].summary
    # The variable is one that does not tell the groups apart, but a call that both make would have completed.
    same = findings_of(at(script, 0, 3, "group"), at(script, 1, 3, "group"), *rest)
    assert set(same) == {"group_order"} and same["group_order"].ranks == (0, 1)


def test_in_branches_of_their_own_ranks_may_call_in_any_order(script: Path) -> None:
    said = findings_of(at(script, 0, 7, "tp"), at(script, 1, 9, "dp"), at(script, 2, 5), at(script, 3, 5))
    assert set(said) == {"group_order"} and said["group_order"].ranks == (0, 1)


def test_a_rank_past_the_line_of_a_sub_group_skipped_it(script: Path) -> None:
    said = findings_of(at(script, 0, 4, "tp"), *(at(script, number, 5) for number in (1, 2, 3)))
    assert set(said) == {"conditional_collective"} and said["conditional_collective"].ranks == (1,)
    assert "Rank 1 skipped all_reduce (train.py:4), in which rank 0 waits" in said["conditional_collective"].summary


@pytest.mark.parametrize(("steps", "ranks"), [((5, 5), (1,)), ((6, 5), None), ((None, None), None)])
def test_in_a_loop_its_variable_must_show_one_round(
    script: Path, steps: tuple[int | None, int | None], ranks: tuple[int, ...] | None
) -> None:
    """A rank that skipped the barrier waits in the next round's call, and stands where the one behind it would."""
    rest = [at(script, number, 12, step=steps[1]) for number in (1, 2, 3)]
    said = findings_of(at(script, 0, 11, "tp", step=steps[0]), *rest)
    assert {finding.ranks for finding in said.values() if finding.confidence > 0.5} == ({ranks} if ranks else set())


@pytest.mark.parametrize(
    "more",
    [{"connections": {}}, {"connections": {1: 3, 2: 2, 3: 1}}, {"connections": {1: 4, 2: 1, 3: 1}}, {"groups": None}],
)
def test_connections_that_do_not_show_the_members_show_nothing(script: Path, more: dict[str, Any]) -> None:
    """Those of another host, of groups with other members, and of something that is no group of gloo."""
    rest = [at(script, number, 5) for number in (1, 2, 3)]
    said = findings_of(at(script, 0, 4, "tp", **more), *rest)
    assert not [finding for finding in said.values() if finding.confidence > 0.5]


def test_groups_of_all_ranks_are_told_apart_by_the_variables_of_one_function(script: Path) -> None:
    every = {"groups": 3, "connections": dict.fromkeys(range(4), 3)}
    said = findings_of(at(script, 0, 3, "dp", **every), *(at(script, number, 3, "tp", **every) for number in (1, 2, 3)))
    assert set(said) == {"group_order"} and said["group_order"].ranks == (0,)
    assert said["group_order"].victims == (1, 2, 3)
    unnamed = {**every, "call": {"op": "all_reduce", "group": "other"}}
    assert findings_of(*(at(script, number, 3, "tp", **unnamed) for number in range(4))) == {}
