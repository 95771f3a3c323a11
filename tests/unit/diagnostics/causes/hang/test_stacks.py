"""Ranks that stand in two collectives by their stacks alone: the causes that this leaves open say so."""

from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.stack_evidence import DifferentCollectives, InCollective
from diagnostics.causes.hang._stacks import described, findings
from diagnostics.contract.findings import text_of
from diagnostics.evidence.model import Frame
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
