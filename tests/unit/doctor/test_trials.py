"""Collectives between real ranks, limits of checks, clocks and reach between nodes: each with what can go wrong."""

import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from dtk.doctor import collectives, node_checks
from dtk.doctor.children import Said, run_child, run_children
from dtk.doctor.examine import Made, examine
from dtk.doctor.model import Check, Remedy, Result
from dtk.doctor.report import Node
from dtk.doctor.scope import Scope


def done(*names, right=True):
    return [{"begin": "meeting"}, {"met": 2}, *({"done": name, "right": right, "ms": 0.5} for name in names)]


@pytest.mark.timeout(120)
def test_every_kind_of_collective_between_two_real_ranks():
    said = collectives.on_this_machine("gloo", 2, 60)
    result = collectives.judge(said, "gloo", several_nodes=False)
    assert result.status == "ok", result
    assert set(result.measures["slowest_ms"]) == {
        "barrier", "broadcast", "all_reduce", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather",
        "scatter", "send_recv",
    }  # fmt: skip


@pytest.mark.timeout(60)
def test_a_rank_that_never_answers_is_named(tmp_path, monkeypatch):
    """Rank 1 sleeps before its first line; rank 0 is real and waits for it."""
    (tmp_path / "sitecustomize.py").write_text("import os, time\nif os.environ.get('RANK') == '1': time.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    began = time.monotonic()
    said = collectives.on_this_machine("gloo", 2, 5)
    assert time.monotonic() - began < 15
    result = collectives.judge(said, "gloo", several_nodes=False)
    assert result.status == "failure"
    assert result.summary.startswith("rank 1 of 2 on gloo: never came: no answer in 5 s (rank 0 waited in ")
    assert result.remedies[0].command == "TORCH_CPP_LOG_LEVEL=INFO dtk doctor --only collectives_gloo -v"


@pytest.mark.timeout(60)
@pytest.mark.extended
def test_a_gloo_interface_that_is_not_there(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth99")
    result = collectives.judge(collectives.on_this_machine("gloo", 2, 30), "gloo", several_nodes=False)
    assert result.status == "failure"
    assert "eth99" in result.summary
    assert result.remedies[0].command == "unset GLOO_SOCKET_IFNAME"


def test_a_rank_that_dies_is_blamed_before_those_that_wait():
    waits = Said([*done("barrier"), {"begin": "all_reduce"}], "no answer in 60 s", late=True)
    dies = Said([*done("barrier"), {"begin": "all_reduce"}], "killed by signal 9")
    result = collectives.judge([waits, waits, dies], "gloo", several_nodes=True, hosts=("a", "b", "c"))
    assert result.summary == "rank 2 (c) of 3 on gloo: killed by signal 9 (ranks 0 (a), 1 (b) waited in all_reduce)"


def test_a_wrong_sum_is_a_failure():
    result = collectives.judge([Said(done("barrier")), Said(done("barrier", right=False))], "nccl", several_nodes=False)
    assert (result.status, result.summary) == ("failure", "barrier on nccl gives a wrong result on 1 rank (rank 1)")
    assert "NCCL_DEBUG=INFO" in result.remedies[0].command


def test_collectives_that_cannot_be_tried(scope):
    scope._torch = type("Facts", (), {"facts": {"gloo": True, "nccl": False}, "reason": ""})()
    assert collectives.nccl(scope).summary == "this torch has no NCCL"
    scope._torch.facts["nccl"] = True
    assert collectives.nccl(scope).summary == "torch sees no CUDA device"


# Children


def test_a_child_that_hangs_is_ended_with_what_it_started(tmp_path):
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys, time, json\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(p.pid))\n"
        "print(json.dumps({'begin': 'it'}), flush=True)\ntime.sleep(600)"
    )
    said = run_child(["-c", code], 2)
    assert (said.records, said.problem, said.late) == ([{"begin": "it"}], "no answer in 2 s", True)
    ends_s = time.monotonic() + 5
    while _lives(int(pid_file.read_text())) and time.monotonic() < ends_s:
        time.sleep(0.05)
    assert not _lives(int(pid_file.read_text()))


def _lives(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_the_others_are_not_waited_for_when_one_fails(monkeypatch):
    monkeypatch.setattr("dtk.doctor.children.GRACE_S", 0.3)
    began = time.monotonic()
    code = "import os, time\nif 'FAIL' in os.environ: raise ValueError('no')\ntime.sleep(600)"
    sleeper, failing = run_children(["-c", code], 60, {0: os.environ, 1: {**os.environ, "FAIL": "1"}})
    assert time.monotonic() - began < 20
    assert sleeper.late
    assert failing.problem == "failed: ValueError: no"


# Limits of checks


def test_a_check_that_hangs_or_breaks_does_not_cost_the_others(tmp_path):
    release = threading.Event()
    checks = [
        Check("hangs", "t", "", lambda scope: release.wait() and None),
        Check("breaks", "t", "", lambda scope: 1 / 0),
        Check("fine", "t", "", lambda scope: Result("ok", "it is")),
    ]
    made = {one.name: one.result for one in examine(checks, Scope(tmp_path, timeout_s=0.3), lambda check: None)}
    release.set()
    assert (made["hangs"].status, made["hangs"].summary) == ("failure", "no answer in 0 s")
    assert (made["breaks"].status, made["fine"].status) == ("warning", "ok")
    assert "ZeroDivisionError" in made["breaks"].summary
    assert made["breaks"].remedies[0].command == "dtk doctor --only breaks --json"


# Between nodes


class Store:
    """torch's store in one process: what the checks between nodes use of it."""

    def __init__(self):
        from torch._C._distributed_c10d import HashStore

        self.store = HashStore()

    def __getattr__(self, name):
        return getattr(self.store, name)


@pytest.fixture
def answer(monkeypatch):
    monkeypatch.setattr(node_checks, "ANSWER_S", 0.5)


def node(number, **common):
    return Node(number, f"host{number}", (Made("c", "t", Result("ok", "", common=common), 0.0),))


def test_nodes_that_differ_are_told_apart():
    nodes = [
        node(0, torch="2.13.0", MTU="1500"),
        node(1, torch="2.13.0", MTU="9000"),
        node(2, torch="2.12.0", MTU="1500"),
    ]
    variables = {0: {"NCCL_DEBUG": "INFO"}, 1: {"NCCL_DEBUG": "INFO"}, 2: {}}
    result = node_checks.agreement(nodes, variables)
    assert result.status == "failure"
    assert result.summary == "torch: 2.12.0 on node 2; 2.13.0 on nodes 0, 1"
    assert result.details == (
        "warning: MTU: 9000 on node 1; 1500 on nodes 0, 2",
        "warning: NCCL_DEBUG: (not set) on node 2; INFO on nodes 0, 1",
    )
    same = node_checks.agreement(nodes[:1] * 2, {})
    assert (same.status, same.summary) == ("ok", "2 versions, limits and variables are the same on 2 nodes")


@pytest.mark.parametrize(("ahead_s", "status"), [(0.0, "ok"), (0.7, "warning"), (-90.0, "failure")])
def test_a_clock_that_is_wrong(answer, monkeypatch, ahead_s, status):
    """Node 1's clock is read in a thread of its own, and put wrong there."""
    store, real = Store(), time.time
    there = threading.Thread(target=node_checks.answer_clock, args=(store, 1))
    monkeypatch.setattr(time, "time", lambda: real() + (ahead_s if threading.current_thread() is there else 0))
    there.start()
    result = node_checks.clock(store, [1])
    there.join()
    assert result.status == status, result
    assert result.measures["skew_s"]["1"] == pytest.approx(ahead_s, abs=0.1)
    if status != "ok":
        assert f"s {'ahead of' if ahead_s > 0 else 'behind'} that of node 0" in result.summary


def test_a_node_that_does_not_tell_its_time(answer):
    result = node_checks.clock(Store(), [1])
    assert (result.status, result.summary) == ("failure", "node 1 does not answer")


def test_nodes_reach_each_other(answer):
    store = Store()
    threads = [
        threading.Thread(target=node_checks.answer_reach, args=(store, n, [0, 1, 2], ("127.0.0.1", 1)))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = node_checks.reach(store, [0, 1, 2])
    assert (result.status, result.summary) == ("ok", "6 connections between nodes")


def test_a_node_behind_a_firewall(answer):
    """Node 1 names a port at which nobody listens, as one looks from outside that a firewall closes."""
    store = Store()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        store.set("reach/at/1", json.dumps({"at": ["127.0.0.1", port]}))
        store.set("reach/failed/1", "{}")
        node_checks.answer_reach(store, 0, [0, 1], ("127.0.0.1", 1))
        result = node_checks.reach(store, [0, 1])
    assert result.status == "failure"
    assert result.summary == f"node 0 cannot connect to node 1: 127.0.0.1 port {port}: Connection refused"


def test_nobody_listens_where_the_ranks_meet():
    from dtk.doctor.nodes import _closed

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        assert _closed(server.getsockname(), 0.1) == "Connection refused"
        server.listen()
        assert _closed(server.getsockname(), 0.1) == ""
    assert "not known" in _closed(("no-such-node.invalid", 1), 30)


def test_every_node_has_neighbours_and_the_first():
    nodes = list(range(100))
    assert node_checks.neighbours(0, nodes) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert node_checks.neighbours(99, nodes) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert node_checks.neighbours(50, nodes)[-1] == 0
    assert node_checks.neighbours(1, [0, 1]) == [0]


def test_remedies_are_told_once():
    from dtk.doctor.model import Finding, judged

    fix = Remedy("do", "it")
    result = judged([Finding("warning", "a", fix), Finding("failure", "b", fix)], "fine")
    assert (result.status, result.summary, result.details, result.remedies) == ("failure", "b", ("warning: a",), (fix,))
