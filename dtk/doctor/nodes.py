"""`torchrun ... -m dtk doctor`: the ranks meet, the leader (local_rank 0) of each node checks it and reports to rank 0.
Every rank takes part in the collectives and ends with the same exit code. Imports torch: for launched processes only.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from torch._C._distributed_c10d import PrefixStore, TCPStore

from diagnostics.contract.formatting import first_of
from dtk.doctor import node_checks
from dtk.doctor.collectives import judge, try_ranks
from dtk.doctor.model import Check, ChildOutput, Result, Scope, finding, judged
from dtk.doctor.node_checks import SHORTEST_PAUSE_S, arrived
from dtk.doctor.rank_identity import Place
from dtk.doctor.registry import Completed, examine
from dtk.doctor.report import Node, Report
from dtk.errors import DtkError, OwnRankError

BYE_S = 5.0  # Chosen: the store's last messages take milliseconds.
RETRY_S = 0.5  # Chosen: interval of connection attempts until the node that serves the store listens.
CHECKS_S = 300.0  # Chosen: time of a node for its quick checks, in addition to the slow ones' limits.
LAST_S = 120.0  # Chosen: additional time of rank 0 for the clocks and the connections of many nodes.


def run(
    place: Place, checks: Sequence[Check], names: frozenset[str], scope: Scope, begin: Callable[[Check], None]
) -> tuple[Report | None, Callable[[int], int]]:
    """Run this rank's part of the checks; DtkError if the ranks did not meet.

    Return the report on rank 0, else None; and what ends the meeting: it takes the exit code on rank 0, and returns it
    on every rank.
    """
    began = time.monotonic()
    meet_s, everything_s = 2 * scope.timeout_s, 10 * scope.timeout_s + CHECKS_S
    store = _meet(place, meet_s)
    roster = _roster(store, place, meet_s)
    hosts = dict(sorted((rank["node"], rank["host"]) for rank in roster if rank is not None))  # Node -> its host.
    scope.nodes = len(hosts)
    scope.under_launcher = True
    if place.local_rank == 0:
        results = examine([check for check in checks if check.topic != "collectives" or scope.nodes < 2], scope, begin)
        store.set(f"node/{place.node}", msgspec.json.encode((results, node_checks.variables())).decode())
    nodes, variables = ([], {}) if place.rank else _gathered(store, hosts, everything_s)
    answering = [node.number for node in nodes]
    if place.rank:
        answering = json.loads(_value_of_rank_0(store, "go", 2 * everything_s))
    collectives = any(check.topic == "collectives" for check in checks)
    between = _between(store, place, roster, answering, names, scope, collectives)
    if place.rank == 0 and "agreement" in names and len(nodes) > 1:
        between.insert(0, Completed("agreement", "nodes", node_checks.agreement(nodes, variables), 0.0))
    report = None
    if place.rank == 0:
        between += [] if scope.nodes > 1 else node_checks.alone(names)
        result = judged([finding("no_report")])
        silent = [number for number in hosts if number not in answering]
        nodes += [Node(number, hosts[number], (Completed("answer", "nodes", result, 0.0),)) for number in silent]
        report = Report(tuple(nodes), tuple(between), time.monotonic() - began)
    return report, lambda code: _leave(store, place, code, everything_s)


def _gathered(
    store: PrefixStore, hosts: Mapping[int, str], seconds: float
) -> tuple[list[Node], dict[int, dict[str, str]]]:
    """Collect the results and variables of each node on rank 0, and signal the others to continue."""
    nodes, variables = [], {}
    ends_s = time.monotonic() + seconds
    for number, host in hosts.items():
        if (text := arrived(store, f"node/{number}", ends_s - time.monotonic())) is not None:
            results, variables[number] = msgspec.json.decode(text, type=tuple[tuple[Completed, ...], dict[str, str]])
            nodes.append(Node(number, host, results))
    store.set("go", json.dumps([node.number for node in nodes]))
    return nodes, variables


def _meet(place: Place, seconds: float) -> PrefixStore:
    """Return the store of all ranks; unlike env://, it does not wait for them, so that missing ones can be named."""
    address = f"{place.master[0]} port {place.master[1]}"
    fix = "check MASTER_ADDR, MASTER_PORT and the firewall"
    if not place.serve and (why := _closed(place.master, seconds)):
        raise OwnRankError(f"rank {place.rank} cannot reach {address}", why, fix)
    try:
        store = TCPStore(
            *place.master, is_master=place.serve, timeout=timedelta(seconds=seconds), wait_for_workers=False
        )
    except RuntimeError as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise OwnRankError(f"rank {place.rank} cannot reach {address}", why, fix) from error
    return PrefixStore(f"doctor/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _closed(master: tuple[str, int], seconds: float) -> str:
    """Return why a port cannot be connected to, or an empty string; the store's own attempts cannot be interrupted."""
    ends_s = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(master, timeout=max(0.1, ends_s - time.monotonic())).close()
        except socket.gaierror as error:
            return error.strerror or str(error)
        except OSError as error:
            if time.monotonic() + RETRY_S > ends_s:
                return error.strerror or str(error)
            time.sleep(RETRY_S)
        else:
            return ""


def _value_of_rank_0(store: PrefixStore, key: str, seconds: float) -> str:
    """Return a value that rank 0 stores for the others; raise DtkError if it does not arrive in time."""
    text = arrived(store, key, seconds)
    if text is None:
        raise DtkError("rank 0 does not respond", f"waited {seconds:.0f} s", "check what its process is doing")
    return text


def _roster(store: PrefixStore, here: Place, seconds: float) -> list[dict[str, Any] | None]:
    """Gather on rank 0, and share with all ranks: host and node of each rank, None for a missing one."""
    about = {"node": here.node, "host": socket.gethostname()}
    store.set(f"rank/{here.rank}", json.dumps(about))
    if here.rank:
        return list(json.loads(_value_of_rank_0(store, "roster", 2 * seconds)))
    ends_s = time.monotonic() + seconds
    came = [arrived(store, f"rank/{rank}", ends_s - time.monotonic()) for rank in range(here.world_size)]
    ranks = [None if text is None else json.loads(text) for text in came]
    store.set("roster", json.dumps(ranks))
    return ranks


def _between(
    store: PrefixStore,
    here: Place,
    roster: Sequence[dict[str, Any] | None],
    answering: Sequence[int],
    names: frozenset[str],
    scope: Scope,
    collectives: bool,
) -> list[Completed]:
    """Run this rank's part of the checks between nodes; on rank 0, return the results."""
    results: list[Completed] = []

    def make(name: str, result: Callable[[], Result]) -> None:
        began = time.monotonic()
        results.append(Completed(name, "nodes", result(), time.monotonic() - began))

    several = scope.nodes > 1
    missing = [rank for rank, place in enumerate(roster) if place is None]
    if here.rank == 0 and missing:
        absent = finding("ranks_absent", ranks=first_of(missing))
        results.append(Completed("ranks", "nodes", judged([absent]), 0.0))
    leads = here.local_rank == 0 and several and here.node in answering
    if "clock" in names and leads:
        if here.rank:
            node_checks.answer_clock(store, here.node)
        else:
            make("clock", lambda: node_checks.clock(store, [node for node in answering if node != here.node]))
    if "reach" in names and leads:
        node_checks.answer_reach(store, here.node, answering, here.master)
        if here.rank == 0:
            make("reach", lambda: node_checks.reach(store, answering))
    backends: list[str] = []
    if collectives and several:  # gloo, and NCCL when rank 0's node has GPUs for it; the same for all.
        if here.rank == 0:
            facts = scope.torch().facts
            own = ["gloo", "nccl"] if facts.get("nccl") and facts.get("devices") else ["gloo"]
            store.set("backends", json.dumps(own))
        backends = json.loads(_value_of_rank_0(store, "backends", 4 * scope.timeout_s + LAST_S))
    for backend in backends:
        began = time.monotonic()
        outputs = _try(store, here, backend, scope.timeout_s)
        if here.rank == 0:
            hosts = [place["host"] if place else "missing" for place in roster]
            result = judge(outputs, backend, hosts)
            results.append(Completed(f"collectives_{backend}", "nodes", result, time.monotonic() - began))
    return results


def _try(store: PrefixStore, place: Place, backend: str, timeout_s: float) -> list[ChildOutput]:
    """Try every collective in a child process; on rank 0, return what the children of all ranks reported."""
    # A process that serves the store serves it to the child processes as well.
    own = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_USE_AGENT_STORE": str(True)}
    (output,) = try_ranks(backend, timeout_s, {place.rank: own})
    store.set(f"output/{backend}/{place.rank}", json.dumps([output.records, output.problem, output.late]))
    if place.rank:
        return []
    ends_s = time.monotonic() + timeout_s
    texts = [arrived(store, f"output/{backend}/{rank}", ends_s - time.monotonic()) for rank in range(place.world_size)]
    silent = ChildOutput([], "its node did not respond", late=True)
    return [silent if text is None else ChildOutput(*json.loads(text)) for text in texts]


def _leave(store: PrefixStore, place: Place, code: int, seconds: float) -> int:
    """Leave together: rank 0 shares the exit code, and waits until the others have it, as it may serve the store."""
    if place.rank:
        code = int(_value_of_rank_0(store, "exit", seconds))
        store.add("bye", 1)
        return code
    store.set("exit", str(code))
    ends_s = time.monotonic() + BYE_S
    while store.add("bye", 0) < place.world_size - 1 and time.monotonic() < ends_s:
        time.sleep(SHORTEST_PAUSE_S)
    return code
