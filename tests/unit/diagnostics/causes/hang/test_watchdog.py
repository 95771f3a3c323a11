"""Findings of which only the lines of NCCL's watchdogs are left: which cause they speak for, and how surely."""

from pathlib import Path
from typing import Literal

import pytest

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.hang import _watchdog
from diagnostics.contract.findings import Finding, text_of
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from tests.unit.diagnostics.analysis.stall.test_watchdog import hung, status, timeout

CAUSES: tuple[Literal["operations", "arguments", "fewer calls"], ...] = ("operations", "arguments", "fewer calls")


def decided(folder: Path, *logs: str) -> dict[str, list[Finding]]:
    """What each kind of cause says of the logs of these ranks."""
    for rank, text in enumerate(logs):
        (folder / f"rank_{rank}.log").write_text(text)
    stall: Stall = explain(gather(folder, Limits()))
    return {name: _watchdog.findings(stall, name) for name in CAUSES}


def test_another_operation_is_no_other_argument(tmp_path: Path) -> None:
    found = decided(tmp_path, hung(0), hung(1), hung(2, op="ALLGATHER"))
    (finding,) = found["operations"]
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (2,), (0, 1))
    assert (finding.position, finding.group and finding.group.desc) == (42, "default_pg")
    assert not found["arguments"] and not found["fewer calls"]
    assert "all_gather of 1,024 elements" in text_of(finding).summary


def test_another_size_is_another_argument_unless_one_side_is_a_metric(tmp_path: Path) -> None:
    found = decided(tmp_path, hung(0), hung(1), hung(2, numel=2048))
    assert [finding.ranks for finding in found["arguments"]] == [(2,)] and not found["operations"]
    (tmp_path / "metric").mkdir()
    found = decided(tmp_path / "metric", hung(0), hung(1), hung(2, numel=1))
    assert [finding.ranks for finding in found["operations"]] == [(2,)] and not found["arguments"]


def test_a_tie_is_less_sure(tmp_path: Path) -> None:
    (finding,) = decided(tmp_path, hung(0), hung(1, op="BROADCAST"))["operations"]
    assert finding.ranks == (0, 1) and finding.confidence < 0.75


@pytest.mark.parametrize("name", CAUSES)
def test_positions_that_differ_leave_it_open(tmp_path: Path, name: str) -> None:
    logs = (timeout(0, seq=42) + status(0, 42), timeout(1, seq=43) + status(1, 43))
    found = decided(tmp_path, *logs)[name]
    assert {finding.status for finding in found} <= {"undecided"}
