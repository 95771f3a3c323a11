"""What stacks show: what a host does has a fix and names its line; two collectives leave causes open."""

from typing import get_args

import pytest

from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.stack_evidence import DifferentCollectives, InCollective
from diagnostics.causes.hang._stacks import _FIXES, described, doing, findings, fix
from diagnostics.contract.findings import text_of
from diagnostics.evidence.model import Frame
from diagnostics.evidence.stacks.activity import Doing, Standing, said
from tests.unit.diagnostics.analysis.calls import job

BARRIER = InCollective("barrier", Frame("/job/train.py", 25, "main"), "stacks", "rank_1.txt")
REDUCE = InCollective("all_reduce", None, "stacks", "rank_0.txt")


def test_a_place_is_named_by_its_operation_and_line() -> None:
    assert described(BARRIER) == "barrier (train.py:25)" and described(REDUCE) == "all_reduce"
    assert described(InCollective("", None, "process", "x")) != ""


def test_two_collectives_leave_a_cause_open_for_every_rank_in_them() -> None:
    case = DifferentCollectives((1,), (0, 2), {1: BARRIER, 0: REDUCE, 2: REDUCE})
    (finding,) = findings(Stall(job({}, 3), stacks=case))
    assert (finding.status, finding.confidence, finding.victims) == ("undecided", 0.0, (0, 1, 2))
    summary = text_of(finding).summary
    assert "barrier (train.py:25)" in summary and "all_reduce" in summary


def test_without_such_stacks_nothing_is_said() -> None:
    assert findings(Stall(job({}, 3))) == []


LINE = Frame("/job/src/loader.py", 7, "get")
UNTOLD = {"collective", "user code", "unknown"}
"""Of these a stack shows nothing that could be fixed by itself."""


@pytest.mark.parametrize("what", get_args(Doing))
def test_every_activity_has_a_fix_at_its_line(what: Doing) -> None:
    at = Standing(what, said("sleep"), LINE)
    assert (what in _FIXES) == (what not in UNTOLD)
    assert fix(at, "look there").endswith(" (/job/src/loader.py:7)")
    assert fix(Standing(what, said("sleep"), None), "look there") == _FIXES.get(what, "look there")


def test_a_place_is_named_without_its_folders() -> None:
    at = Standing("sleep", said("sleep"), LINE, "or what looks like it")
    assert doing(at) == "sleeping (loader.py:7 in get)"
    assert doing(at, explained=True) == "sleeping, or what looks like it (loader.py:7 in get)"
    assert doing(Standing("sleep", said("sleep"), None), explained=True) == "sleeping"
