"""Collects evidence from the ranks of a running job in rounds, into a folder that `dtk diagnose` reads. The only things
written to the job are the byte that asks its own flight recorder for a dump, and the questions to the servers that it
has opened on this host: torch's debug server, which asks all ranks, and NCCL's RAS.
"""

import json
import os
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

from diagnostics.contract.artifacts import SCHEMA_VERSION, write_json
from diagnostics.contract.files import read_record
from diagnostics.contract.formatting import ranks_spoken
from diagnostics.evidence.model import integer
from diagnostics.evidence.readers.process import Moment
from dtk.attach import processes, stacks
from dtk.attach.processes import Job, RankProcess, children, listening
from dtk.attach.stacks import Manner

ANSWER_S = 10.0  # Timeout of an answer. RAS itself waits 5 s for processes that do not respond.
MOST_BYTES = 64 << 20  # Chosen: above the dumps of 64 ranks with torch's default of 2,000 entries.
RAS_PORT = 28028  # Default of NCCL_RAS_ADDR.
_TITLE = " - PyTorch Distributed</title>"
_ANSWER = re.compile(r"<h2>Rank (\d{1,7}): (\S+?)/handler/[^<]*</h2>\s*<pre>(.*?)</pre>", re.DOTALL)
"""Answer of one rank, unless it failed, on a page of torch/distributed/debug/_frontend.py."""
AT_ONCE = 8  # Number of processes inspected in parallel; each uses one core.
SETTLE_S = 0.1  # Time until a process waits again after py-spy has left it.
FLIGHT_S = 3.0  # Timeout for the flight recorder's files.
MOST_FLIGHT_BYTES = 256 << 20  # Chosen: far above a dump of torch's default of 2,000 entries.
_DUMP_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


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


@dataclass(slots=True)
class Watched:
    """One rank over the rounds."""

    process: RankProcess
    looks: list[tuple[Moment, Moment]] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)
    seen: stacks.Dump = field(default_factory=lambda: stacks.Dump(""))
    connections: dict[int, int] = field(default_factory=dict)
    problem: str = ""

    def look(self, program: str | None, manner: Manner) -> Moment:
        """Read the stacks once; return the sample of /proc taken before."""
        before, _ = processes.moment(self.process.pid)
        if program is not None and before.state not in ("", "Z", "X"):
            # A suspended process does not move, and detaching could resume it.
            manner = "nonblocking" if before.state in ("T", "t") else manner
            seen = stacks.dump(program, self.process.pid, manner)
            if manner == "native" and not seen.text:
                seen = stacks.dump(program, self.process.pid, "python")
            self.problem = seen.problem
            if seen.text:
                self.seen = seen
                self.dumps.append(f"# stacks at {time.time():.3f} s since 1970\n{seen.text}")
        return before


def collect(
    ranks: Job, folder: Path, rounds: int, every_s: float, manner: Manner, show: Callable[[str], None]
) -> list[str]:
    """Look at all ranks in rounds and write what they show; C's frames are read in the last round only.

    Return what could not be collected and how to fix it, one line each; OSError if the folder cannot be written.
    """
    watched = {rank: Watched(process) for rank, process in sorted(ranks.items())}
    program = stacks.spy()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for remaining in reversed(range(rounds)):
            show(f"round {rounds - remaining} of {rounds}")
            now: Manner = "python" if remaining and manner == "native" else manner
            before = list(pool.map(Watched.look, watched.values(), repeat(program), repeat(now)))
            time.sleep(SETTLE_S)
            for seen, moment in zip(watched.values(), before, strict=True):
                seen.looks.append((moment, processes.moment(seen.process.pid)[0]))
            time.sleep(every_s if remaining else 0.0)
    connections = processes.connections(ranks)
    for rank, seen in watched.items():
        seen.connections = connections[rank]
        if seen.dumps:
            _file(folder, f"stacks/rank_{rank:05d}.txt").write_text("\n".join(seen.dumps), encoding="utf-8")
        last, code = processes.moment(seen.process.pid)
        _record(folder, seen.process, rank, last, code, seen)
    peer = ranks[min(ranks)]
    # torch's agent terminates all ranks of a host when one fails, so one that is always missing has exited normally.
    ended = tuple(rank for rank, seen in watched.items() if seen.looks[-1][1].state in ("", "Z", "X"))
    code = 0 if len(ended) < len(watched) and "TORCHELASTIC_RUN_ID" in peer.environment else None
    missing = processes.missing(ranks)
    for rank in missing:
        _record(folder, peer, rank, Moment(time.time()), code)
    lacks = [f"no process of {ranks_spoken(tuple(missing))} is left on this host"] if missing else []
    lacks += [f"{ranks_spoken(ended)} ended during the inspection: what they did before is in the log"] if ended else []
    flight, answered = _flight(folder, ranks), answers(ranks)
    _answers(folder, min(watched), answered, {rank for rank, seen in watched.items() if seen.dumps})
    unseen = {rank: seen.problem for rank, seen in watched.items() if not seen.dumps and rank not in answered.stacks}
    if program is None and unseen:
        lacks.append("no stacks, only what /proc shows: py-spy is not installed. To install it: pip install py-spy")
    elif problems := {rank: problem for rank, problem in unseen.items() if problem}:
        lacks.append(f"no stacks of {ranks_spoken(tuple(problems))}: {stacks.rights(next(iter(problems.values())))}")
    return [*lacks, *_devices(folder, min(watched)), *flight, *answered.lacks]


def _record(
    folder: Path, process: RankProcess, rank: int, last: Moment, code: int | None, watched: Watched | None = None
) -> None:
    """Write the file that `diagnostics.evidence.readers.process` reads."""
    record: dict[str, object] = {"dtk_process": 1, "rank": rank, "world_size": process.world_size}
    pairs = [[list(before), list(after)] for before, after in watched.looks] if watched else []
    record |= {"host": socket.gethostname(), "last": list(last), "looks": pairs}
    if watched is not None:
        record |= {"pid": process.pid, "call": watched.seen.call, "counters": watched.seen.counters}
        record |= {"groups": processes.groups(process.pid), "lock_holder": processes.lock_holder(process.pid)}
        record |= {"connections": watched.connections, "problem": watched.problem, **processes.about(process.pid)}
    write_json(_file(folder, f"process/rank_{rank:05d}.json"), record | ({} if code is None else {"exit_code": code}))


def _devices(folder: Path, first_rank: int) -> list[str]:
    """Take one sample of every GPU of this host, in the form of dtk's telemetry."""
    from dtk.record.nvml import all_devices, open_nvml

    nvml, _ = open_nvml()
    if nvml is None:
        return []
    try:
        devices = all_devices(nvml)
    except nvml.NVMLError as error:
        return [f"no state of the GPUs: NVML: {error}"]
    gpu = [{"index": d.index, "uuid": d.uuid, "name": d.name, "signals": d.signals} for d in devices]
    about = {"kind": "about", "schema_version": SCHEMA_VERSION, "host": socket.gethostname(), "cores": os.cpu_count()}
    sample = {"kind": "sample", "time_s": time.time(), "gpu": [d.sample(nvml) for d in devices], "host": {}}
    lines = [json.dumps(line) for line in ({**about, "time_s": time.time(), "every_s": 1.0, "gpu": gpu}, sample)]
    _file(folder, f"telemetry/node_{first_rank:05d}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return []


def _flight(folder: Path, ranks: Job) -> list[str]:
    """Request a timeout dump from each rank's ProcessGroupNCCL through its pipe, if the job opened one."""
    awaited: dict[int, tuple[Path, float, int]] = {}
    for rank, process in ranks.items():
        variables = process.environment
        stem = variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
        file = next((variables[name] for name in _DUMP_FILES if name in variables), "/tmp/nccl_trace_rank_")
        root = processes.PROC / str(process.pid) / "root"  # A container has its own file system.
        pipe = root / f"{stem}{rank}.pipe".lstrip("/")
        with suppress(OSError):
            # The job's user names the files, and root may run this: files of other users are left alone.
            if stem and pipe.is_fifo() and pipe.lstat().st_uid == (owner := root.parent.stat().st_uid):
                awaited[rank] = root / f"{file}{rank}".lstrip("/"), time.time(), owner
                with os.fdopen(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "wb", buffering=0) as handle:
                    handle.write(b"1")
    ends_s = time.monotonic() + FLIGHT_S
    while awaited and time.monotonic() < ends_s:
        time.sleep(0.2)
        for rank, (path, since_s, owner) in list(awaited.items()):
            with suppress(OSError, ValueError):
                about = path.lstat()
                if about.st_size and about.st_mtime >= since_s - 1 and about.st_uid == owner:
                    dumped = read_record(path, MOST_FLIGHT_BYTES, follow=False)
                    _file(folder, f"flight/rank_{rank:05d}.pickle").write_bytes(dumped)
                    del awaited[rank]
    late = f"the flight recorder of {ranks_spoken(tuple(awaited))} wrote no dump within {FLIGHT_S:g} s"
    return [late] if awaited else []


def _answers(folder: Path, first_rank: int, answers: Answers, seen: set[int]) -> None:
    """Write what the job's own servers answered, unless there are stacks of the rank, or a dump, which has frames."""
    shown = [text for rank, text in sorted(answers.stacks.items()) if rank not in seen]
    if shown:
        _file(folder, "stacks/debug_server.txt").write_text("".join(shown), encoding="utf-8")
    for rank, dumped in answers.flight.items():
        if not (file := _file(folder, f"flight/rank_{rank:05d}.pickle")).exists():
            file.with_suffix(".json").write_text(dumped, encoding="utf-8")
    if answers.ras:
        _file(folder, f"ras/node_{first_rank:05d}.txt").write_bytes(answers.ras)


def _file(folder: Path, name: str) -> Path:
    (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
    return folder / name
