"""Checks between nodes over a store: rank 0 asks, and the leaders (local_rank 0) of the other nodes answer."""

import json
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from diagnostics.contract.formatting import first_of
from diagnostics.contract.grouping import grouped
from dtk.doctor.model import Result, finding, judged, not_applicable
from dtk.doctor.registry import BETWEEN, Completed
from dtk.doctor.report import Node

ROUNDS = 8  # Chosen: the fastest of eight round trips gives the tightest bound on the clock offset.
CLOCK_WARNING_S, CLOCK_FAILURE_S = 0.1, 2.0
"""Chosen: skew that blurs a common timeline of the nodes, and skew that breaks timeouts and file ages."""
ANSWER_S = 20.0  # Chosen: a responsive node answers within milliseconds.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.05
"""Chosen: pause between polls of the store; it grows, so that 1,000 nodes do not overload the store."""
CONNECT_S = 3.0  # TCP sends its first packet again after one second, and after two more (RFC 6298).
NEIGHBOURS = 8  # Chosen: nodes that each node connects to, in addition to node 0.
MUST_AGREE = ("dtk", "torch", "NCCL", "GPUs")  # Differences that break a job; all others are warnings.
PACKAGES = ("torch", "NCCL", "Python", "hydra-core", "omegaconf", "dtk")
VARIABLES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "CUDA_DEVICE_ORDER", "FI_", "UCX_")
PER_NODE = ("NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE")
"""Variables that may differ between nodes."""


def alone(names: Collection[str]) -> list[Completed]:
    """Return the results of the chosen checks when there is only one node."""
    reason = "there is only one node (for several nodes: torchrun ... -m dtk doctor)"
    return [Completed(name, "nodes", not_applicable(reason), 0.0) for name in BETWEEN if name in names]


Store = Any  # A store of torch.distributed, of which `set`, `get` and `check` are used; torch is not imported here.


def arrived(store: Store, key: str, seconds: float) -> str | None:
    """Return a value that another rank stores, or None if it does not arrive in time.

    Polls, as the store's own wait cannot be interrupted by a signal, and prints stack traces.
    """
    ends_s, pause_s = time.monotonic() + seconds, SHORTEST_PAUSE_S
    while not store.check([key]):
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            return None
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return str(store.get(key).decode())


def variables() -> dict[str, str]:
    """Return variables of this node that all nodes must share."""
    return {n: v for n, v in os.environ.items() if n.startswith(VARIABLES) and n not in PER_NODE}


def agreement(nodes: Sequence[Node], of_node: Mapping[int, Mapping[str, str]]) -> Result:
    """Check that versions, limits and variables are the same on all nodes."""
    values: dict[int, dict[str, str]] = {}
    for node in nodes:
        common = {name: value for check in node.checks for name, value in check.result.common.items()}
        values[node.number] = {**common, **of_node.get(node.number, {})}
    names = sorted({name for own in values.values() for name in own})
    findings = []
    for name in names:
        groups = grouped((own.get(name, "(not set)"), number) for number, own in values.items())
        if len(groups) > 1:
            rarest = sorted(groups.items(), key=lambda group: len(group[1]))
            texts = [f"{value} on node{'s' * (len(nodes) > 1)} {first_of(nodes)}" for value, nodes in rarest]
            kind = "variable" if name.isupper() or "_" in name else "version" if name in PACKAGES else "limit"
            findings.append(finding(f"{kind}_differs", bad=name in MUST_AGREE, name=name, texts="; ".join(texts)))
    fine = f"{len(names)} versions, limits and variables are the same on {len(nodes)} nodes"
    return judged(findings, fine, measures={"differences": [finding.text for finding in findings]})


def answer_clock(store: Store, node: int) -> None:
    """Measure and report the offset of this node's clock from rank 0's; the leaders of all other nodes call this."""
    best_s, offset_s = float("inf"), 0.0
    for i in range(ROUNDS):
        before, began = time.time(), time.perf_counter()
        store.set(f"clock/ping/{node}/{i}", "1")
        text = arrived(store, f"clock/pong/{node}/{i}", ANSWER_S)
        trip_s = time.perf_counter() - began
        if text is None:
            return
        if trip_s < best_s:
            best_s, offset_s = trip_s, before + trip_s / 2 - float(text)
    store.set(f"clock/offset/{node}", json.dumps([offset_s, best_s / 2]))


def clock(store: Store, nodes: Sequence[int]) -> Result:
    """Return the skew of every other node's clock with its uncertainty (half a round trip); called on rank 0."""
    offsets: dict[int, tuple[float, float]] = {}
    findings = []
    for node in nodes:
        for i in range(ROUNDS):
            if arrived(store, f"clock/ping/{node}/{i}", ANSWER_S) is None:
                break
            store.set(f"clock/pong/{node}/{i}", repr(time.time()))
        text = arrived(store, f"clock/offset/{node}", ANSWER_S)
        if text is None:
            findings.append(finding("node_silent", node=node))
            continue
        offset_s, half_trip_s = json.loads(text)
        offsets[node] = (offset_s, half_trip_s)
        sure_s = abs(offset_s) - half_trip_s
        if sure_s > CLOCK_WARNING_S:
            way = "ahead of" if offset_s > 0 else "behind"
            findings.append(finding("clock", bad=sure_s > CLOCK_FAILURE_S, node=node, seconds=abs(offset_s), way=way))
    lines = [f"node {node}  {skew * 1e3:+.1f} ms (+- {half * 1e3:.1f} ms)" for node, (skew, half) in offsets.items()]
    largest = max((abs(skew) for skew, _ in offsets.values()), default=0.0)
    measures = {"skew_s": {str(node): round(skew, 6) for node, (skew, _) in offsets.items()}}
    return judged(findings, f"clocks differ by {largest * 1e3:.1f} ms at most", details=lines, measures=measures)


def listen(master: str, port: int) -> tuple[socket.socket, str]:
    """Return a socket for other nodes, and this node's address on the route to the first node; OSError without one."""
    family = socket.getaddrinfo(master, port, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as way:  # Sends nothing: only the route is asked for.
        way.connect((master, port))
        address = str(way.getsockname()[0])
    server = socket.socket(family, socket.SOCK_STREAM)
    server.bind(("", 0))
    server.listen(128)
    return server, address


def neighbours(node: int, nodes: Sequence[int]) -> list[int]:
    """Return the nodes that a node connects to: the next ones around the ring, and the first node."""
    at = nodes.index(node)
    following = [nodes[(at + i) % len(nodes)] for i in range(1, min(NEIGHBOURS, len(nodes) - 1) + 1)]
    return list(dict.fromkeys([*following, *([nodes[0]] if node != nodes[0] else [])]))


def answer_reach(store: Store, node: int, nodes: Sequence[int], master: tuple[str, int]) -> None:
    """Listen, connect to the neighbours and report unreachable ones; the leader of every node calls this."""
    try:
        server, address = listen(*master)
    except OSError as error:
        store.set(f"reach/at/{node}", json.dumps({"error": error.strerror or str(error)}))
        store.set(f"reach/failed/{node}", "{}")
        return
    with server:
        store.set(f"reach/at/{node}", json.dumps({"at": [address, server.getsockname()[1]]}))
        failed: dict[int, str] = {}
        for peer in neighbours(node, nodes):
            answer = json.loads(arrived(store, f"reach/at/{peer}", ANSWER_S) or '{"error": "it does not respond"}')
            if "at" not in answer:
                failed[peer] = str(answer["error"])
                continue
            host, port = answer["at"]
            try:
                socket.create_connection((host, port), timeout=CONNECT_S).close()
            except OSError as error:
                failed[peer] = f"{host} port {port}: {error.strerror or error}"
        store.set(f"reach/failed/{node}", json.dumps(failed))
        for peer in nodes:  # Other nodes may still be about to connect.
            arrived(store, f"reach/failed/{peer}", ANSWER_S + CONNECT_S * NEIGHBOURS)


def reach(store: Store, nodes: Sequence[int]) -> Result:
    """Return which connections failed according to the nodes; called on rank 0 after its own `answer_reach`."""
    findings, pairs = [], 0
    for node in nodes:
        failed: dict[str, Any] = {}
        with suppress(ValueError):
            failed = json.loads(arrived(store, f"reach/failed/{node}", ANSWER_S) or "null") or {}
        pairs += len(neighbours(node, nodes))
        for peer, why in failed.items():
            findings.append(finding("unreachable", node=node, other=peer, why=why))
    return judged(findings, f"{pairs} connections between nodes")
