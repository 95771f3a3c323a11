"""What stacks show: what a host does has a fix and names its line, a call its operation and line."""

from typing import get_args

import pytest

from diagnostics.analysis.stall.stack_evidence import InCollective
from diagnostics.causes.hang._parts import _FIXES, described, doing, fix
from diagnostics.evidence.model import Frame
from diagnostics.evidence.stacks.activity import Activity, Doing, phrase

BARRIER = InCollective("barrier", Frame("/job/train.py", 25, "main"), "stacks", "rank_1.txt")
REDUCE = InCollective("all_reduce", None, "stacks", "rank_0.txt")


def test_a_place_is_named_by_its_operation_and_line() -> None:
    assert described(BARRIER) == "barrier (train.py:25)" and described(REDUCE) == "all_reduce"
    assert described(InCollective("", None, "process", "x")) != ""


LINE = Frame("/job/src/loader.py", 7, "get")
UNTOLD = {"collective", "user code", "unknown"}
"""Of these a stack shows nothing that could be fixed by itself."""


@pytest.mark.parametrize("what", get_args(Doing))
def test_every_activity_has_a_fix_at_its_line(what: Doing) -> None:
    at = Activity(what, phrase("sleep"), LINE)
    assert (what in _FIXES) == (what not in UNTOLD)
    assert fix(at, "look there").endswith(" (/job/src/loader.py:7)")
    assert fix(Activity(what, phrase("sleep"), None), "look there") == _FIXES.get(what, "look there")


def test_a_place_is_named_without_its_folders() -> None:
    at = Activity("sleep", phrase("sleep"), LINE, "or what looks like it")
    assert doing(at) == "sleeping (loader.py:7 in get)"
    assert doing(at, explained=True) == "sleeping, or what looks like it (loader.py:7 in get)"
    assert doing(Activity("sleep", phrase("sleep"), None), explained=True) == "sleeping"
