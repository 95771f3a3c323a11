"""Links that failed: which pair, what all lines have in common, and errors that only follow."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.report.model import Report


def completion(host: str, peer: str, status: int = 12, more: str = "") -> str:
    head = f"{host}:3468:3905 [4] net_ib.cc:1615 NCCL WARN NET/IB : Got completion from peer {peer}<54862>"
    return f"{head} with status={status} opcode=0 len=0 vendor err 129 (Recv){more}"


def said(folder: Path, *lines: str) -> Report:
    (folder / "job.log").write_text("\n".join(("step 1 loss 3.2", *lines, "")))
    return diagnose(folder)


def test_a_pair(tmp_path: Path) -> None:
    (root,) = said(tmp_path, completion("node-0", "10.0.0.2")).root_causes
    assert (root.cause, root.ranks) == ("network.link_fault", ())
    assert "status 12 between node-0 and 10.0.0.2" in text_of(root).summary


@pytest.mark.parametrize(
    ("lines", "common"),
    [
        ([completion("a", "10.0.0.2"), completion("b", "10.0.0.2")], "10.0.0.2"),
        ([completion("a", "10.0.0.2"), completion("a", "10.0.0.3")], "a"),
        ([completion("a", "10.0.0.2", more=" hca mlx5_3"), completion("b", "10.0.0.9", more=" hca mlx5_3")], "mlx5_3"),
        ([completion("a", "10.0.0.2"), completion("b", "10.0.0.3")], ""),
    ],
)
def test_what_all_lines_have_in_common(tmp_path: Path, lines: list[str], common: str) -> None:
    (root,) = said(tmp_path, *lines).root_causes
    assert (f"All lines have {common} in common." if common else "A link failed.") in text_of(root).summary
    assert ("in common" in text_of(root).summary) == bool(common)


ASYNC = "n:77:90 [3] net_ib.cc:9 NCCL WARN NET/IB : mlx5_1:1 Got async event : "
DOWN = "mlx5_core 0000:3b:00.0 ibs3: Link down"


def test_a_port_that_went_down(tmp_path: Path) -> None:
    (root,) = said(tmp_path, ASYNC + "port error", DOWN).root_causes
    assert root.cause == "network.link_fault" and "port mlx5_1:1, ibs3 reported" in text_of(root).summary


@pytest.mark.parametrize("line", [ASYNC + "GID table change", DOWN])
def test_an_event_that_alone_shows_no_fault(tmp_path: Path, line: str) -> None:
    report = said(tmp_path, line)
    assert not report.root_causes and report.outcome == "undecided"


@pytest.mark.parametrize("status", [4, 5, 10])
def test_a_status_that_follows_from_another_error_is_not_decided(tmp_path: Path, status: int) -> None:
    report = said(tmp_path, completion("a", "10.0.0.2", status))
    assert not report.root_causes and report.outcome == "undecided"


def test_a_peer_that_failed_by_itself_is_the_cause(tmp_path: Path) -> None:
    raised = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/job/train.py", line 5, in f\n'
    report = said(tmp_path, completion("a", "10.0.0.2"), raised + "[rank3]: ValueError: bad batch")
    assert [(root.cause, root.ranks) for root in report.root_causes] == [("hang.rank_raised", (3,))]
