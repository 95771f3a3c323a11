"""The interface that the ranks communicate over: one that is absent, or that does not reach the other nodes."""

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.report import terminal
from diagnostics.report.diagnosis import document
from tests.unit.diagnostics.causes.env.evidence import decide, dtk_run, fact, job
from tests.unit.diagnostics.causes.env.test_lint import RDMA


def test_an_interface_that_gloo_does_not_find():
    missing = fact("interface_missing", "Unable to find address for: nope0", 1, name="nope0")
    result = decide(job(facts=[missing]))["env.wrong_interface"]
    assert (result.status, result.ranks) == ("confirmed", (1,))
    assert "'nope0'" in text_of(result).summary


def test_docker_chosen_between_nodes():
    chosen = fact("nccl_bootstrap", "Bootstrap: Using docker0:172.17.0.1<0>", 0, interface="docker0")
    many = decide(job(facts=[chosen], run=dtk_run(nodes=2)))["env.wrong_interface"]
    assert (many.status, many.confidence) == ("confirmed", 0.9)
    item = decide(job(facts=[chosen], run=dtk_run(nodes=1, hardware=RDMA)))["env.wrong_interface"]
    assert item.status == "ruled_out", "within one node it does no harm"
    failed = fact("nccl_connect", "connect to 172.17.0.1<4> failed : No route to host", 0, peer="172.17.0.1<4>")
    guess = decide(job(facts=[chosen, failed]))["env.wrong_interface"]
    assert (guess.status, guess.confidence) == ("confirmed", 0.8)


def test_sockets_only_on_local_interfaces():
    listed = fact("nccl_socket", "", 0, interfaces="[0]docker0:172.17.0.1<0> [1]veth12:fe80::1<0>")
    failed = fact("nccl_connect", "", 0, peer="x<1>")
    assert decide(job(facts=[listed, failed]))["env.wrong_interface"].status == "confirmed"
    mixed = fact("nccl_socket", "", 0, interfaces="[0]eth0:10.0.0.1<0> [1]docker0:172.17.0.1<0>")
    assert decide(job(facts=[mixed, failed]))["env.wrong_interface"].status == "undecided"


@pytest.mark.parametrize(
    ("peer", "cause"),
    [
        ("169.254.7.9<21724>", "env.wrong_interface"),
        ("[fe80::1%eth0]<21724>", "env.wrong_interface"),
        ("10.3.4.5<1>", ""),
    ],
)
def test_a_link_local_peer_is_the_wrong_interface(tmp_path, peer, cause):
    line = f"n:77:90 [0] include/socket.h:390 NCCL WARN Connect to {peer} failed : Connection refused\n"
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n" + line)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ([cause] if cause else [])


@pytest.mark.parametrize(
    ("own", "peer", "expected"),
    [
        ("eth0:10.0.0.4<0>", "172.17.0.1<43531>", True),
        ("ib0:10.0.0.4<0>", "127.0.1.1<43531>", True),
        ("eth0:172.17.0.3<0>", "172.17.0.4<43531>", False),  # Both are in the containers' network of one node.
        ("eth0:10.0.0.4<0>", "10.0.0.5<43531>", False),
    ],
)
def test_a_peer_that_announced_an_address_inside_its_node(tmp_path, own, peer, expected):
    lines = [
        f"n:77:77 [0] NCCL INFO Bootstrap : Using {own}",
        f"n:77:90 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to {peer} failed : Connection refused",
        "RuntimeError: NCCL error in: x.cpp:219, remote process exited or there was a network error",
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    report = diagnose(tmp_path)
    assert (report.outcome, [root.cause for root in report.root_causes]) == (
        ("crashed", ["env.wrong_interface"]) if expected else ("undecided", [])
    )


def test_nccl_finds_no_interface(tmp_path):
    line = "n:77:90 [0] bootstrap.cc:1 NCCL WARN Bootstrap : no socket interface found\n"
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n" + line)
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "env.wrong_interface" and "No usable network interface" in text_of(root).summary


REFUSED = "h13:941:943 [0] include/socket.h:390 NCCL WARN Connect to 10.38.10.112<21724> failed : Connection refused\n"
RETRIES = "h13:941:943 [0] NCCL INFO Call to connect returned Connection refused, retrying\n" * 5
RAISED = (
    '[rank3]: Traceback (most recent call last):\n[rank3]:   File "t.py", line 1, in <module>\n[rank3]: KeyError: 1\n'
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (RETRIES + REFUSED, "env.wrong_interface"),
        (REFUSED, ""),  # Once: the peer may be about to listen, or about to end.
        (RAISED + RETRIES + REFUSED, "hang.rank_raised"),
        ("h13:9:9 [0] NCCL WARN Net : Connection closed by remote peer h14<7>\n" + RETRIES + REFUSED, ""),
    ],
)
def test_an_address_at_which_nobody_ever_listened_is_not_the_peers(tmp_path, text, cause):
    (tmp_path / "train.log").write_text(text)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ([cause] if cause else [])


@pytest.mark.parametrize(("interface", "expected"), [("lo", True), ("eth0", False)])
def test_peers_that_refuse_again_and_again_on_a_local_interface(interface, expected):
    chosen = fact("nccl_bootstrap", f"Bootstrap : Using {interface}:127.0.0.1<0>", 0, interface=interface)
    refused = fact("nccl_retry", "Call to connect returned Connection refused, retrying", 0, count=3)
    decided = decide(job(facts=[chosen, refused]))["env.wrong_interface"]
    assert (decided.status == "confirmed") == expected


@pytest.mark.parametrize(
    ("remote", "local", "size", "causes"),
    [
        ("127.0.0.1", "127.0.0.1", 24, ["env.wrong_interface"]),
        ("127.0.0.1", "127.0.0.1", 8, ["hang.rendezvous"]),  # One node may well use it: the peer had ended.
        ("10.0.0.7", "10.0.0.5", 24, ["hang.rendezvous"]),
    ],
)
def test_gloo_gave_the_loopback_address_to_other_nodes(tmp_path, remote, local, size, causes):
    where = f"SO_ERROR: Connection refused, remote=[{remote}]:4711 (rank=9, size={size}, local=[{local}])"
    failed = "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out"
    line = f"RuntimeError: {failed} connecting: {where}\n"
    (tmp_path / "train.log").write_text("[rank9]: Traceback (most recent call last):\n[rank9]: " + line)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == causes


def test_an_exception_about_a_missing_interface_is_no_cause_beside_it(tmp_path):
    text = "[enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: 10.1.2.3"
    head = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "train.py", line 4, in <module>\n'
    (tmp_path / "train.log").write_text(f"{head}[rank0]: RuntimeError: {text}\n[rank1]: RuntimeError: {text}\n")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["env.wrong_interface"]


@pytest.mark.parametrize(
    ("why", "peer", "said"),
    [
        ("failed : No route to host", "10.0.0.9<41187>", "no route to 10.0.0.9"),
        ("failed : No route to", "10.0.0.9<41187>", "no route to 10.0.0.9"),  # Cut where a terminal folded it.
        ("returned 113(No route to host) errno 115(Operation now in progress)", "10.0.0.4<56849>", "firewall"),
        ("returned No route to host, exceeded error retry count (35)", "172.17.0.1<41187>", "Docker"),
    ],
)
def test_no_route_to_the_address_of_a_peer(tmp_path, why, peer, said):
    line = f"n:77:90 [0] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to {peer} {why}\n"
    (tmp_path / "train.log").write_text(line)
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "env.wrong_interface"
    assert said in text_of(root).summary


def test_no_route_in_a_job_that_had_trained_says_nothing_about_its_interface(tmp_path):
    waited = (
        "[rank1]:[E1122 10:20:30.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds\n"
    )
    line = "n:77:90 [0] misc/socket.cc:533 NCCL WARN Connect to 10.0.0.4<5> failed : No route to host\n"
    (tmp_path / "train.log").write_text(waited + line)
    assert "env.wrong_interface" not in [root.cause for root in diagnose(tmp_path).root_causes]


def test_a_connection_that_nccl_gave_up_ended_the_job(tmp_path):
    retries = "n:77:90 [0] NCCL INFO Call to connect returned Connection refused, retrying\n" * 3
    line = "n:77:90 [0] include/socket.h:390 NCCL WARN Connect to 10.3.4.5<21724> failed : Connection refused\n"
    (tmp_path / "train.log").write_text(retries + line)
    report = diagnose(tmp_path)
    assert [root.cause for root in report.root_causes] == ["env.wrong_interface"] and report.outcome == "crashed"


CLOSED = "n:77:90 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1<5>\n"


@pytest.mark.parametrize(("before", "decided"), [("starts\n", True), (CLOSED, False)])
def test_a_connection_that_failed_and_was_tried_again(tmp_path, before, decided):
    failed = "n:77:90 [0] socket.cc:4 NCCL WARN Connect to 10.0.0.2<4> failed : Software caused connection abort\n"
    (tmp_path / "train.log").write_text(f"{before}{failed}{CLOSED}")
    rows = [(root.cause, root.confidence) for root in diagnose(tmp_path).root_causes]
    assert rows == ([("env.wrong_interface", 0.6)] if decided else [])


@pytest.mark.parametrize(
    ("peer", "launcher", "suspected"),
    [
        ("127.0.1.1", "", True),
        ("10.0.0.7", "", False),
        ("127.0.1.1", "+ torchrun --nnodes 1 --nproc-per-node 8 train.py\n", False),  # It ended: nobody listens there.
    ],
)
def test_a_refused_loopback_address_is_a_suspicion_unless_there_is_one_node(tmp_path, peer, launcher, suspected):
    text = f"RuntimeError: [/b/gloo/transport/tcp/pair.cc:799] connect [{peer}]:3210: Connection refused\n"
    (tmp_path / "train.log").write_text(launcher + text)
    report = diagnose(tmp_path)
    causes = {each.finding.cause for each in report.findings if each.finding.suspected}
    assert not report.root_causes and ("env.wrong_interface" in causes) is suspected
    shown = terminal.render(document(report, brief=True), columns=None, colour=False).splitlines()
    labels = [line.split()[0] for line in shown if line[:1].isalpha()]
    assert not suspected or labels.index("maybe") < labels.index("needed")


@pytest.mark.parametrize(
    ("line", "suspected"),
    [
        (
            "n:7:9 [0] misc/socket.cc:8 NCCL WARN Socket creation failed : Address family not supported by protocol\n",
            True,
        ),
        ("Last error:\nncclSocketInit: address  with family 51234 is neither AF_INET(2) nor AF_INET6(10)\n", True),
        ("n:7:9 [0] misc/socket.cc:8 NCCL WARN Call to bind failed : Address already in use\n", False),
        (
            "[W socket.cpp:5] [c10d] Socket failed (errno: 97 - Address family not supported by protocol).\n",
            False,
        ),
    ],
)
def test_an_address_of_no_family_that_nccl_uses_is_a_suspicion(tmp_path, line, suspected):
    (tmp_path / "train.log").write_text("step 1 loss 2.0\nstep 2 loss 1.9\n" + line)
    report = diagnose(tmp_path)
    assert "env.wrong_interface" not in [root.cause for root in report.root_causes]
    assert (
        "env.wrong_interface" in {each.finding.cause for each in report.findings if each.finding.suspected}
    ) is suspected
