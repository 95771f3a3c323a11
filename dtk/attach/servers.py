"""Asks the servers that a job has opened on this host: torch's debug server, which asks all ranks, and NCCL's RAS."""

import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

from diagnostics.evidence.model import integer
from dtk.attach.processes import Job, children, listening

ANSWER_S = 10.0  # Timeout of an answer. RAS itself waits 5 s for processes that do not respond.
MOST_BYTES = 64 << 20  # Chosen: above the dumps of 64 ranks with torch's default of 2,000 entries.
RAS_PORT = 28028  # Default of NCCL_RAS_ADDR.
_TITLE = " - PyTorch Distributed</title>"
_ANSWER = re.compile(r"<h2>Rank (\d{1,7}): (\S+?)/handler/[^<]*</h2>\s*<pre>(.*?)</pre>", re.DOTALL)
"""Answer of one rank, unless it failed, on a page of torch/distributed/debug/_frontend.py."""


@dataclass(slots=True)
class Answers:
    """What the servers of a job answered."""

    stacks: dict[int, str] = field(default_factory=dict)
    """Rank -> stacks of all its threads, in the form of the debug server's own files."""
    flight: dict[int, str] = field(default_factory=dict)
    """Rank -> dump of its flight recorder as JSON, which has no frames."""
    ras: bytes = b""
    lacks: list[str] = field(default_factory=list)


def answers(ranks: Job) -> Answers:
    """Ask the servers of a job. A port is only asked if a process of the job listens on it."""
    collected = Answers()
    own = listening([process.pid for process in ranks.values()])
    beside = listening(children(ranks[0].pid)) - own if 0 in ranks else set()  # A fork has its parent's sockets too.
    for port in sorted(beside):
        if _TITLE not in _page(port, ""):
            continue
        for rank, url, text in _ANSWER.findall(_page(port, "stacks")):
            collected.stacks[int(rank)] = f"=== Rank {rank}: {url} ===\n{text}\n"
        for name in ("fr_trace_json", "fr_trace_nccl_json"):
            dumps = {int(rank): text for rank, _, text in _ANSWER.findall(_page(port, name))}
            collected.flight |= {rank: text for rank, text in dumps.items() if '"collective_seq_id"' in text}
        if not collected.stacks:
            collected.lacks.append(f"torch's debug server showed no stacks within {ANSWER_S:g} s")
    address = ranks[min(ranks)].environment.get("NCCL_RAS_ADDR", "")
    if (port := integer(address.rpartition(":")[2], 1, 1 << 16) or RAS_PORT) in own:
        collected.ras = ask(port, b"verbose status\n")
        collected.lacks += [] if collected.ras else [f"NCCL's RAS did not answer within {ANSWER_S:g} s"]
    return collected


def ask(port: int, request: bytes) -> bytes:
    """Return what a server of this host sends until it closes the connection; empty if it does not in time."""
    ends_s, answer = time.monotonic() + ANSWER_S, bytearray()
    with suppress(OSError), socket.create_connection(("localhost", port), ANSWER_S) as connection:
        connection.sendall(request)
        while len(answer) <= MOST_BYTES and (left_s := ends_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            if not (part := connection.recv(1 << 16)):
                return bytes(answer)
            answer += part
    return b""


def _page(port: int, name: str) -> str:
    return ask(port, f"GET /{name} HTTP/1.0\r\n\r\n".encode()).decode("utf-8", "replace")
