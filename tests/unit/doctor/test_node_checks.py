"""Between nodes: agreement, clocks and who reaches whom, each with what can go wrong."""

import json
import socket
import threading
import time

import pytest

from dtk.doctor import node_checks
from dtk.doctor.model import Result
from dtk.doctor.registry import Completed
from dtk.doctor.report import Node


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
    return Node(number, f"host{number}", (Completed("c", "t", Result("ok", "", common=common), 0.0),))


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
    assert (result.status, result.summary) == ("failure", "node 1 does not respond")


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


def test_every_node_has_neighbours_and_the_first():
    nodes = list(range(100))
    assert node_checks.neighbours(0, nodes) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert node_checks.neighbours(99, nodes) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert node_checks.neighbours(50, nodes)[-1] == 0
    assert node_checks.neighbours(1, [0, 1]) == [0]
