"""Finds the ranks of training jobs among the processes of this host, by /proc. Reads only. Of several Python processes
with the same RANK in their environment the outermost is the rank; its launcher starts other ranks.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnostics.contract.files import kernel_fields, kernel_text, stat_fields, table_beside
from diagnostics.evidence.model import MOST_RANKS, integer
from diagnostics.evidence.readers.process import Moment

PROC = Path("/proc")
PLACES: dict[str, str] = table_beside(__file__)
_GROUP_THREADS = {"pt_gloo_runloop": 2, "pt_nccl_watchdg": 1}
"""Names of torch's threads (ProcessGroupGloo.cpp, ProcessGroupNCCL.cpp) -> number per process group."""
_JOB = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # Unit of the times in /proc/PID/stat, proc(5).
_STATE, _PARENT, _USER, _SYSTEM, _EXIT = 0, 1, 11, 12, 49
"""Fields of proc_pid_stat(5), counted from the third one on."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One rank of a job."""

    pid: int
    rank: int
    world_size: int
    job: tuple[str, ...]
    """Identity of the job: equal for its ranks, different for other jobs of this host."""
    command: str
    environment: Mapping[str, str] = field(repr=False)

    @property
    def place(self) -> tuple[int, int, str]:
        """Key that is equal for a rank and its child processes."""
        return self.rank, self.world_size, self.environment.get("LOCAL_RANK", "")


Job = dict[int, RankProcess]  # The ranks of one job that run on this host.


def find(pids: Collection[int] = ()) -> list[Job]:
    """Return the jobs of this host; with `pids` only those that these processes belong to or started, whole."""
    parents: dict[int, int] = {}
    ranks: dict[int, RankProcess] = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal() and (fields := stat_fields(folder)):
            pid = int(folder.name)
            parents[pid] = int(fields[_PARENT])
            if (process := _rank(pid)) is not None:
                ranks[pid] = process
    started = _started_by_first(parents, ranks)
    ranks |= started
    parents |= {pid: parents[first] for pid in started if (first := parents[pid]) in started}  # They are peers.
    above: dict[int, list[int]] = {}
    for pid in ranks:
        above[pid], parent = [], pid
        while (parent := parents.get(parent, 0)) > 1:
            above[pid].append(parent)
    launchers = {up for pid in ranks for up in above[pid] if up in ranks and ranks[up].place != ranks[pid].place}
    of_ranks = ranks.keys() - launchers  # With the processes that a rank started, which have its environment.
    outermost = [pid for pid in sorted(of_ranks) if of_ranks.isdisjoint(above[pid])]
    named = {*pids, *(up for pid in of_ranks.intersection(pids) for up in above[pid] if up in of_ranks)}
    # The other ranks belong to the job too. A launcher stands for those below it: MPI's jobs cannot be told apart.
    whole = {ranks[pid].job for pid in named.intersection(outermost)}
    jobs: defaultdict[tuple[str, ...], Job] = defaultdict(dict)
    for pid in outermost:
        process = ranks[pid]
        if not pids or process.job in whole or not named.isdisjoint(above[pid]):
            jobs[process.job].setdefault(process.rank, process)
    return list(jobs.values())


def _started_by_first(parents: Mapping[int, int], numbered: Collection[int]) -> dict[int, RankProcess]:
    """Return the ranks of nodes whose first rank started the others itself, as Lightning does: without RANK.

    Only the others have the variables since their start, with the number of the node and the rank within it.
    """
    workers: defaultdict[int, dict[int, RankProcess]] = defaultdict(dict)
    variables = {pid: _environment(pid) for pid in parents if pid not in numbered and _is_python(PROC / str(pid))}
    for pid, own in variables.items():
        size, first = integer(own.get("WORLD_SIZE"), 2, MOST_RANKS + 1), parents[pid]
        local, node = integer(own.get("LOCAL_RANK"), 1, size or 0), integer(own.get("NODE_RANK"), 0, MOST_RANKS)
        of_worker = variables.get(first, own).get("LOCAL_RANK") == own.get("LOCAL_RANK")
        if size is not None and local is not None and node is not None and not of_worker:
            workers[first][pid] = _process(pid, local, size, own)
    ranks: dict[int, RankProcess] = {}
    for first, others in workers.items():
        worker = next(iter(others.values()))
        environment = {**worker.environment, "LOCAL_RANK": "0"}
        before = int(environment["NODE_RANK"]) * (len(others) + 1)
        for pid, each in {first: _process(first, 0, worker.world_size, environment), **others}.items():
            ranks[pid] = replace(each, rank=before + each.rank)
    return ranks


def missing(ranks: Job) -> list[int]:
    """Return the ranks that this host should have, as its launcher numbers them, and that have no process."""
    expected: set[int] = set()
    for process in ranks.values():
        size = integer(process.environment.get("LOCAL_WORLD_SIZE"), 1, process.world_size + 1)
        local = integer(process.environment.get("LOCAL_RANK"), 0, min(size or 0, process.rank + 1))
        if size is not None and local is not None:
            first = process.rank - local
            expected |= set(range(first, first + size))
    return sorted(expected - set(ranks))


def moment(pid: int) -> tuple[Moment, int | None]:
    """Return what /proc says of a process now; of one that ended and was not waited for also its exit code."""
    own, main = stat_fields(PROC / str(pid)), stat_fields(PROC / str(pid) / "task" / str(pid))
    if not own:
        return Moment(time.time()), None
    switches = kernel_fields(PROC / str(pid) / "task" / str(pid) / "status").get("voluntary_ctxt_switches", "")
    cpu_s = sum(int(ticks) for ticks in (main or own)[_USER : _SYSTEM + 1]) * _TICK_S
    wchan = kernel_text(PROC / str(pid) / "wchan").strip("0")
    ended = own[_STATE] == "Z" and len(own) > _EXIT
    code = os.waitstatus_to_exitcode(int(own[_EXIT])) if ended else None
    return Moment(time.time(), own[_STATE], round(cpu_s, 3), int(switches or 0), wchan), code


def about(pid: int) -> dict[str, object]:
    """Return memory, cgroup and number of sockets of a process, as far as they can be read."""
    status = kernel_fields(PROC / str(pid) / "status")
    facts: dict[str, object] = {name: status[name] for name in ("VmRSS", "Threads") if name in status}
    for line in kernel_text(PROC / str(pid) / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)  # Version 2 has one line, without controllers.
        folder = Path("/sys/fs/cgroup") / controllers / path.lstrip("/")
        for name in ("memory.current", "memory.max") if not controllers else ("memory.usage_in_bytes",):
            facts |= {name: text} if (text := kernel_text(folder / name)) else {}
    return facts | {"sockets": len(_sockets(pid))}


def lock_holder(pid: int) -> int | None:
    """Return the process that holds the file lock for which a process waits, by proc_locks(5)."""
    rows = [line.split() for line in kernel_text(PROC / "locks").splitlines()]
    lock_ids = {row[0] for row in rows if row[1] == "->" and row[5] == str(pid)}
    return next((int(row[4]) for row in rows if row[0] in lock_ids and row[1] != "->"), None)


def children(pid: int) -> list[int]:
    """Return the Python processes that a process has started."""
    lists = [kernel_text(task / "children") for task in (PROC / str(pid) / "task").glob("*")]
    return [int(child) for text in lists for child in text.split() if _is_python(PROC / child)]


def listening(pids: Iterable[int]) -> set[int]:
    """Return the TCP ports on which processes accept connections, if they use the network of this process."""
    own = {inode for pid in pids for inode in _sockets(pid)}
    return {int(row[1][-4:], 16) for row in _tcp("self") if row[3] == "0A" and row[9] in own}


def connections(ranks: Job) -> dict[int, Counter[int]]:
    """Return the number of TCP connections of each rank to each other one of this host: gloo makes one for each group.

    Those to the store do not count, which a rank may serve.
    """
    first, counts = ranks[min(ranks)], {rank: Counter[int]() for rank in ranks}
    store = f":{integer(first.environment.get('MASTER_PORT'), 1, 1 << 16) or 0:04X}"
    owner = {inode: rank for rank, process in ranks.items() for inode in _sockets(process.pid)}
    ends = {(row[1], row[2]): owner[row[9]] for row in _tcp(first.pid) if row[9] in owner}
    for (local, remote), rank in ends.items():
        if (remote, local) in ends and store not in (local[-5:], remote[-5:]):
            counts[rank][ends[remote, local]] += 1
    return counts


def _tcp(pid: int | str) -> list[list[str]]:
    """Return the rows of proc_pid_net(5): 1 local address, 2 remote address, 3 state (0A = listening), 9 inode."""
    return [line.split() for name in ("tcp", "tcp6") for line in kernel_text(PROC / f"{pid}/net/{name}").splitlines()]


def _sockets(pid: int) -> set[str]:
    """Return the inodes of the sockets of a process; a file that is closed meanwhile resolves to no socket."""
    with suppress(OSError):
        names = [entry.resolve().name for entry in (PROC / str(pid) / "fd").iterdir()]
        return {name[8:-1] for name in names if name.startswith("socket:[")}
    return set()


def _is_python(folder: Path) -> bool:
    with suppress(OSError):
        return (folder / "exe").readlink().name.startswith("python")
    return False


def groups(pid: int) -> int:
    """Return the number of gloo and NCCL process groups of a rank, from the threads that torch starts for each."""
    names = [kernel_text(task / "comm") for task in (PROC / str(pid) / "task").glob("*")]
    return sum(-(-names.count(name) // each) for name, each in _GROUP_THREADS.items())


def _rank(pid: int) -> RankProcess | None:
    """Return the rank that a Python process is; None for other or inaccessible processes."""
    folder = PROC / str(pid)
    if not _is_python(folder):
        return None
    environment = _environment(pid)
    for of_rank, of_size in PLACES.items():
        size = integer(environment.get(of_size), 1, MOST_RANKS + 1)  # It may be any user's process, with any content.
        rank = integer(environment.get(of_rank), 0, size or 0)
        if size is not None and rank is not None:
            return _process(pid, rank, size, environment)
    return None


def _process(pid: int, rank: int, size: int, environment: Mapping[str, str]) -> RankProcess:
    command = kernel_text(PROC / str(pid) / "cmdline").replace("\0", " ").strip()
    job = tuple(environment.get(name, "") for name in _JOB)
    return RankProcess(pid, rank, size, job, command, environment)


def _environment(pid: int) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in kernel_text(PROC / str(pid) / "environ").split("\0"))
    return {name: value for name, _, value in pairs}
