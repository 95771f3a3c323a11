"""Links that failed: which pair, what all lines have in common, and errors that only follow."""

from pathlib import Path

import pytest

from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.network.link_fault import RETRY_EXCEEDED, LinkFaults, link_faults
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact
from diagnostics.report.model import Report
from tests.unit.diagnostics.analysis.calls import fact


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


@pytest.mark.parametrize(("more", "device"), [(" hca mlx5_3", "mlx5_3"), ("", "")])
def test_the_device_of_a_single_line_is_the_one_to_check_and_exclude(tmp_path: Path, more: str, device: str) -> None:
    (root,) = said(tmp_path, completion("node-0", "10.0.0.2", more=more)).root_causes
    text = text_of(root)
    assert f"NCCL_IB_HCA=^{device or 'DEVICE'}" in text.remedies[0].change
    assert ("It was on mlx5_3." in text.summary) is bool(device) and "All lines" not in text.summary


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
LOST = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:93, remote process exited or there was a network error"


def test_a_port_that_went_down(tmp_path: Path) -> None:
    (root,) = said(tmp_path, ASYNC + "port error", DOWN, LOST).root_causes
    assert root.cause == "network.link_fault" and "port mlx5_1:1, ibs3 reported" in text_of(root).summary


def test_a_port_s_event_after_which_the_job_went_on_and_one_without_a_device(tmp_path: Path) -> None:
    event = "n:77:90 [3] net_ib.cc:9 NCCL WARN NET/IB : Got async event : port error\n"
    steps = "".join(f"step {n} loss {3 - n / 100:.3f} time 0.51s\n" for n in range(1, 30))
    (tmp_path / "job.log").write_text(steps + event + LOST)
    first = diagnose(tmp_path).root_causes[0]
    assert first.cause == "network.link_fault" and "port reported an error or went down" in text_of(first).summary
    (tmp_path / "job.log").write_text(event + steps)
    assert not diagnose(tmp_path).root_causes


WATCHDOG = (
    "[rank5]:[E1120 10:11:12.1 ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: Work"
    "NCCL(SeqNum=120, OpType=ALLREDUCE, NumelIn=99999, NumelOut=99999, Timeout(ms)=600000) ran for 600012 milliseconds"
)


@pytest.mark.parametrize("event", ["port error", "device fatal", "local catastrophic error"])
@pytest.mark.parametrize(
    ("before", "after", "is_link"),
    [
        ([], [], False),
        ([f"[{n}/900] acc 0.5" for n in range(20)], [f"[{n}/900] acc 0.5" for n in range(20, 60)], False),
        ([], ["Training complete"], False),
        ([], ["ValueError: bad batch"], False),
        ([f"step {n} loss 2.0" for n in range(2, 20)], [], False),
        ([f"step {n} loss 2.0" for n in range(2, 20)], [WATCHDOG], True),
        ([], [LOST], True),
        ([], ["[rank2]: ValueError: bad batch", LOST], False),
    ],
)
def test_an_event_of_a_port_fails_a_link_only_where_communication_ended(
    tmp_path: Path, event: str, before: list[str], after: list[str], is_link: bool
) -> None:
    report = said(tmp_path, *before, ASYNC + event, *after)
    assert any(root.cause == "network.link_fault" for root in report.root_causes) == is_link
    finding = next(item.finding for item in report.findings if item.finding.cause == "network.link_fault")
    assert is_link or ("A port reported an error" in text_of(finding).summary and finding.status == "undecided")


@pytest.mark.parametrize("event", ["port error", "device fatal"])
def test_a_port_and_a_bare_exit_code_are_no_more_than_a_suspicion(tmp_path: Path, event: str) -> None:
    """A port comes back, so whatever made the process exit may have nothing to do with it; a device does not."""
    steps = [f"step {n} loss 2.0" for n in range(2, 20)]
    report = said(tmp_path, *steps, ASYNC + event, "srun: error: n: task 3: Exited with exit code 1")
    finding = next(item.finding for item in report.findings if item.finding.cause == "network.link_fault")
    assert (finding.status, finding.suspected) == ("confirmed", event == "port error")
    assert [root.cause for root in report.root_causes] == ["network.link_fault"] * (event != "port error")
    assert (report.outcome == "undecided") == (event == "port error")


DATED = [f"[2026-07-01 10:{n // 6:02}:{n % 6}0] step {n} loss {3 - n / 100:.2f}" for n in range(30)]
STOPPED = "slurmstepd: error: *** JOB 7 ON n CANCELLED AT 2026-07-01T{} DUE TO TIME LIMIT ***"


@pytest.mark.parametrize(("stopped", "is_link"), [("11:31:07", True), ("10:05:02", False)])
def test_a_device_failed_and_no_step_was_printed_until_the_job_was_stopped(
    tmp_path: Path, stopped: str, is_link: bool
) -> None:
    event = ASYNC.replace("Got async event : ", "async fatal event: ") + "local catastrophic error"
    roots = said(tmp_path, *DATED, event, STOPPED.format(stopped)).root_causes
    assert [root.cause for root in roots][:1] == (["network.link_fault"] if is_link else ["env.job_stopped"])


def test_an_event_of_a_port_of_a_job_that_trained_on_is_suspected_of_nothing(tmp_path: Path) -> None:
    steps = [f"step {n} loss {3 - n / 100:.3f}" for n in range(2, 40)]
    assert not said(tmp_path, *steps[:9], ASYNC + "port error", *steps[9:]).suspicions
    assert said(tmp_path, *steps, ASYNC + "port error").suspicions


def test_a_device_that_refuses_the_settings_of_a_connection_is_said_to(tmp_path: Path) -> None:
    refused = "n:88:159 [0] ibvwrap.cc:199 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument errno 22"
    (root,) = said(tmp_path, refused).root_causes
    assert root.cause == "network.link_fault" and root.confidence < 0.7
    assert "refused the settings" in text_of(root).summary and "show_gids" in text_of(root).remedies[0].change


@pytest.mark.parametrize("line", [ASYNC + "GID table change", DOWN])
def test_an_event_that_alone_shows_no_fault(tmp_path: Path, line: str) -> None:
    report = said(tmp_path, line)
    assert not report.root_causes and report.outcome == "undecided"


@pytest.mark.parametrize(
    ("event", "suspected"),
    [("client reregistration", False), ("SM change", False), ("port active", False), ("GID table change", True)],
)
def test_an_event_of_the_subnet_manager_makes_nobody_suspect_the_network(
    tmp_path: Path, event: str, suspected: bool
) -> None:
    causes = {item.cause for item in said(tmp_path, ASYNC + event).suspicions}
    assert ("hang.network" in causes) == ("network.link_fault" in causes) == suspected


@pytest.mark.parametrize("status", [1, 5, 10])
def test_a_status_that_follows_from_another_error_is_not_decided(tmp_path: Path, status: int) -> None:
    report = said(tmp_path, completion("a", "10.0.0.2", status))
    assert not report.root_causes and report.outcome == "undecided"


def test_a_peer_that_failed_by_itself_is_the_cause(tmp_path: Path) -> None:
    raised = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/job/train.py", line 5, in f\n'
    report = said(tmp_path, completion("a", "10.0.0.2"), raised + "[rank3]: ValueError: bad batch")
    assert [(root.cause, root.ranks) for root in report.root_causes] == [("hang.rank_raised", (3,))]


OLD = "NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129"
OFI = "[rank3]: Last error:\n[rank3]: NET/OFI Request 0x7f14cc5b60c0 completed with error. RC: "
QP = "n:77:90 [3] ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with "


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"n:77:90 [0] net_ib.cc:839 NCCL WARN {OLD}", "status 12 between n and a peer"),
        (f"what(): NCCL error: remote process exited, NCCL version 2.14.3 Last error: {OLD}", "status 12 between"),
        (QP + "error Network is unreachable", "could not be connected (Network is unreachable)"),
        (QP + "110 Connection timed out, on dev mlx5_3:1, curr state INIT", "(Connection timed out, on mlx5_3)"),
        (QP + "error Connection timed out errno 110", "(Connection timed out)"),
        (OFI + "113. Error: 2 (UNDELIVERABLE). Completed length: 0", "could not be connected (UNDELIVERABLE)"),
        (OFI + "5. Flags: 9. Error: 14 (Unreachable remote (never received a response))", "(Unreachable remote)"),
    ],
)
def test_older_texts_and_connections_that_were_never_made(tmp_path: Path, line: str, text: str) -> None:
    (root,) = said(tmp_path, line).root_causes
    assert root.cause == "network.link_fault" and text in text_of(root).summary


def test_a_device_that_is_not_there_is_no_link(tmp_path: Path) -> None:
    assert not said(tmp_path, QP + "error No such device").root_causes


def test_a_plugin_that_lacks_memory_shows_no_link(tmp_path: Path) -> None:
    assert not said(tmp_path, OFI + "5. Flags: 260. Error: 16 (NO_SPACE). Completed length: 0").root_causes


@pytest.mark.parametrize("event", ["local catastrophic error", "device fatal"])
def test_a_device_whose_driver_gave_up_is_no_port(tmp_path: Path, event: str) -> None:
    (root,) = said(tmp_path, ASYNC + event, LOST).root_causes
    assert root.cause == "network.link_fault"
    assert text_of(root).summary.startswith("A network device failed. Its driver reported a fatal error")


def faults(*facts: LogFact) -> LinkFaults:
    return link_faults(explain(Evidence(Path(), Limits(), facts=list(facts))))


def failure(status: int = 12, host: str = "a", peer: str = "10.0.0.2", **more: str) -> LogFact:
    return fact("nccl_ib_error", 0, status=status, process=f"{host}:17", peer=f"{peer}<41>", **more)


@pytest.mark.parametrize("status", [5, 12, 13, 4, None])
def test_only_some_statuses_speak_of_the_way_between_two_ports(status: int) -> None:
    link_faults = faults(failure(status))
    assert len(link_faults.completions) == (status in RETRY_EXCEEDED)
    assert link_faults.without == "followed"


def test_ports_and_links() -> None:
    failed, soft = (
        fact("nccl_ib_async", 0, failed="port error", device="mlx5_0"),
        fact("nccl_ib_async", 0, device="mlx5_0"),
    )
    link_faults = faults(failed, soft, fact("link_down", device="eth0"), fact("nccl_net", 0), fact("nccl_result", 0))
    assert (len(link_faults.ports), len(link_faults.down), len(link_faults.completions)) == (1, 1, 0)
    alone = faults(failed, soft, fact("link_down", device="eth0"))
    assert (len(alone.ports), alone.without) == (0, "event")


def test_pairs_of_hosts_the_most_frequent_first() -> None:
    link_faults = faults(failure(), failure(host="b", peer="10.0.0.9"), failure(host="b", peer="10.0.0.9"))
    assert link_faults.pairs == (("b", "10.0.0.9"), ("a", "10.0.0.2"))


@pytest.mark.parametrize(
    ("facts", "common"),
    [
        ([failure(device="mlx5_0")], "mlx5_0"),
        ([failure(device="mlx5_0"), failure(device="mlx5_0", host="b")], "mlx5_0"),
        ([failure(host="a"), failure(host="b")], "10.0.0.2"),
        ([failure(peer="10.0.0.2"), failure(peer="10.0.0.3")], "a"),
        ([failure(host="a", peer="10.0.0.2"), failure(host="b", peer="10.0.0.3")], ""),
        (
            [failure(local_gid="fe80::1", peer="x"), failure(local_gid="fe80::1", peer="y", host="b")],
            "fe80::1",
        ),
    ],
)
def test_what_all_lines_share(facts: list[LogFact], common: str) -> None:
    assert faults(*facts).common == common


def test_an_exception_that_repeats_nccls_warning_is_no_second_event(tmp_path: Path) -> None:
    said = "NET/IB : Got completion from peer 10.0.0.2<45000> with status=12 opcode=0 len=0 vendor err 129 (Send)"
    warned = f"n1:4242:4301 [0] transport/net_ib.cc:1296 NCCL WARN {said}\n"
    (tmp_path / "job.log").write_text(
        f"{warned}ncclRemoteError: A call failed possibly due to a network error.\nLast error:\n{said}\n"
    )
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "network.link_fault" and "in common" not in text_of(root).summary
    (tmp_path / "job.log").write_text(warned + warned.replace("n1:4242", "n3:77"))
    (root,) = diagnose(tmp_path).root_causes
    assert "10.0.0.2 in common" in text_of(root).summary


@pytest.mark.parametrize("why", ["22 Invalid argument", "110 Connection timed out"])
@pytest.mark.parametrize(
    ("end", "counts"),
    [("training finished\n", False), ("", True), ("RuntimeError: NCCL error: unhandled system error\n", True)],
)
def test_a_connection_that_failed_in_a_job_that_then_finished_did_not_end_it(
    tmp_path: Path, why: str, end: str, counts: bool
) -> None:
    steps = "".join(f"step {n} loss {4 - n / 50:.4f}\n" for n in range(100))
    (tmp_path / "job.log").write_text(f"{steps}{QP}{why}\n{end}")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["network.link_fault"] * counts
