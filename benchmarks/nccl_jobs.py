"""NCCL jobs of several layouts, played through on simulated hosts and devices, and the dumps that torch would leave.

Hosts enqueue calls and run ahead of their devices until they synchronize. A device runs its kernels in order; a
collective begins on a rank when its device has come to it, and ends on all members together, or never if they differ.
"""

import pickle
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_NS = 1_790_000_000 * 10**9
TORCH = "/opt/conda/lib/python3.11/site-packages/torch/"
LAUNCH_S, LAYER_S, COLLECTIVE_S, TIMEOUT_MS = 20e-6, 3e-3, 1e-3, 600_000  # A layer has tens of kernels.
Site = tuple[tuple[str, str, int], ...]  # Frames, innermost first: function, file, line.
Groups = dict[str, tuple[str, list[int]]]  # Name -> description, ranks.


@dataclass(frozen=True)
class Compute:
    """A kernel of the rank's own."""

    ms: float


@dataclass(frozen=True)
class Collective:
    """A collective of a group."""

    group: str
    op: str
    size: int
    dtype: str
    site: Site
    wait: bool = True
    """Whether later kernels of the rank wait for it."""


@dataclass(frozen=True)
class Messages:
    """Sends and receives that are posted together: (send or recv, peer)."""

    group: str
    halves: tuple[tuple[str, int], ...]
    size: int
    site: Site


@dataclass(frozen=True)
class Host:
    """What the host does: waits for the device (`sync`), makes later kernels wait (`join`), sleeps, stops, sticks."""

    does: str
    seconds: float = 0.0


Call = Compute | Collective | Messages | Host


class Work:
    """A piece of work of a device: ends `lasts_s` after all that it depends on; None = only if somebody ends it."""

    def __init__(self, after: Sequence["Work | None"], lasts_s: float | None) -> None:
        self.open = {work for work in after if work is not None and work.ended_s is None}
        self.ready_s = max(
            (work.ended_s for work in after if work is not None and work.ended_s is not None), default=0.0
        )
        self.lasts_s, self.ended_s, self.followers = lasts_s, None, list[Work]()
        self.ended_s: float | None = None
        for work in self.open:
            work.followers.append(self)
        self.settle()

    def settle(self) -> None:
        """End if everything before has ended, and what follows with it."""
        todo = [self]
        while todo:
            work = todo.pop()
            if work.open or work.lasts_s is None or work.ended_s is not None:
                continue
            work.ended_s = work.ready_s + work.lasts_s
            for follower in work.followers:
                follower.open.discard(work)
                follower.ready_s = max(follower.ready_s, work.ended_s)
                todo.append(follower)

    def end_after(self, before: "Work") -> None:
        """End together with `before`."""
        self.lasts_s = 0.0
        if before.ended_s is None:
            self.open.add(before)
            before.followers.append(self)
        else:
            self.ready_s = max(self.ready_s, before.ended_s)
        self.settle()


@dataclass
class Rank:
    """Host and device of one rank."""

    number: int
    program: Iterator[Call]
    own: list[str]
    now_s: float = 0.0
    kernel: Work | None = None
    streams: dict[str, Work] = field(default_factory=dict)
    waits: list[Work] = field(default_factory=list)
    stuck: bool = False
    ended: bool = False
    seqs: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    message_seqs: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    entries: list[tuple[dict[str, Any], Work, Work]] = field(default_factory=list)
    """Entry of the recorder, the work that has to end before it begins, and its own."""


class Job:
    """A job of several ranks."""

    def __init__(self, groups: Groups, programs: dict[int, Iterator[Call]], broken: tuple[str, int] = ("", 0)) -> None:
        self.groups, self.broken = groups, broken
        """`broken`: a group whose collectives complete on nobody, and the position from which on."""
        self.ranks = [
            Rank(rank, program, [name for name, (_, ranks) in groups.items() if rank in ranks])
            for rank, program in sorted(programs.items())
        ]
        self._met: dict[tuple[str, int], dict[int, tuple[tuple[object, ...], Work, Work]]] = {}
        self._halves: dict[tuple[str, int, int], dict[str, list[tuple[Work, Work]]]] = {}

    def play(self) -> "Job":
        """Run until no host can move."""
        moved = True
        while moved:
            moved = False
            for rank in self.ranks:
                while not rank.ended and all(work.ended_s is not None for work in rank.waits):
                    rank.now_s = max([rank.now_s, *(work.ended_s or 0.0 for work in rank.waits)])
                    rank.waits, moved = [], True
                    call = next(rank.program, None)
                    rank.ended = call is None
                    if call is not None:
                        self._do(rank, call)
        return self

    @property
    def hangs(self) -> bool:
        """Whether a call of any rank never ends."""
        return any(work.ended_s is None for rank in self.ranks for _, _, work in rank.entries)

    def _do(self, rank: Rank, call: Call) -> None:
        rank.now_s += LAUNCH_S
        if isinstance(call, Compute):
            rank.now_s += LAYER_S
            rank.kernel = Work([rank.kernel], None if rank.stuck else call.ms / 1e3)
        elif isinstance(call, Collective):
            self._collective(rank, call)
        elif isinstance(call, Messages):
            self._messages(rank, call)
        elif call.does == "sleep":
            rank.now_s += call.seconds
        elif call.does == "stop":
            rank.ended = True
        elif call.does == "stick":
            rank.stuck, rank.kernel = True, Work([], None)
        elif call.does == "join":
            rank.kernel = Work([rank.kernel, *rank.streams.values()], 0.0)
        else:
            rank.waits = [work for work in (rank.kernel, *rank.streams.values()) if work is not None]

    def _collective(self, rank: Rank, call: Collective) -> None:
        rank.seqs[call.group] += 1
        before, done = self._begin(rank, call.group), Work([], None)
        self._record(rank, call.group, call.op, [call.size], call.dtype, call.site, before, done)
        rank.streams[call.group] = done
        if call.wait:
            rank.kernel = Work([rank.kernel, done], 0.0)
        key = call.group, rank.seqs[call.group]
        met = self._met.setdefault(key, {})
        met[rank.number] = (call.op, call.size, call.dtype), before, done
        works = any(key[0] != name or key[1] < first for name, first in [self.broken])
        if works and len(met) == len(self.groups[call.group][1]) and len({what for what, _, _ in met.values()}) == 1:
            together = Work([begins for _, begins, _ in met.values()], COLLECTIVE_S)
            for _, _, ends in met.values():
                ends.end_after(together)

    def _messages(self, rank: Rank, call: Messages) -> None:
        rank.message_seqs[call.group] += 1
        members, before, works = self.groups[call.group][1], self._begin(rank, call.group), []
        for half, peer in call.halves:
            done = Work([], None)
            arrow = "->" if half == "send" else "<-"
            name = f"{half} {members.index(rank.number)}{arrow}{members.index(peer)}"
            self._record(rank, call.group, name, [call.size], "BFloat16", call.site, before, done, is_p2p=True)
            pair = (rank.number, peer) if half == "send" else (peer, rank.number)
            halves = self._halves.setdefault((call.group, *pair), {"send": [], "recv": []})
            halves[half].append((before, done))
            number, other = len(halves[half]), halves["recv" if half == "send" else "send"]
            if len(other) >= number:
                together = Work([halves["send"][number - 1][0], halves["recv"][number - 1][0]], COLLECTIVE_S)
                for text in ("send", "recv"):
                    halves[text][number - 1][1].end_after(together)
            works.append(done)
        done = Work(works, 0.0)
        if len(call.halves) > 1:
            self._record(rank, call.group, "coalesced", None, "", call.site, before, done, is_p2p=True)
        rank.streams[call.group] = done
        rank.kernel = Work([rank.kernel, done], 0.0)

    def _begin(self, rank: Rank, group: str) -> Work:
        host = Work([], rank.now_s)
        return Work([host, rank.streams.get(group), rank.kernel], 0.0)

    def _record(
        self, rank: Rank, group: str, op: str, size: list[int] | None, dtype: str, site: Site, before: Work, done: Work,
        *, is_p2p: bool = False,
    ) -> None:  # fmt: skip
        outer = [{"name": name, "filename": file, "line": line} for name, file, line in site]
        entry = {
            "frames": [{"name": "wrapper", "filename": TORCH + "distributed/c10d_logger.py", "line": 83}, *outer],
            "record_id": len(rank.entries),
            "pg_id": rank.own.index(group),
            "process_group": (group, self.groups[group][0]),
            "collective_seq_id": rank.seqs[group],
            "p2p_seq_id": rank.message_seqs[group],
            "op_id": len(rank.entries),
            "profiling_name": f"nccl:{op}",
            "time_created_ns": START_NS + int(rank.now_s * 1e9),
            "input_sizes": [] if size is None else [size],
            "input_dtypes": [dtype] if dtype else [],
            "output_sizes": [] if size is None else [size],
            "output_dtypes": [dtype] if dtype else [],
            "timeout_ms": TIMEOUT_MS,
            "is_p2p": is_p2p,
        }
        rank.entries.append((entry, before, done))

    def write(self, folder: Path, *, stacks: bool, timed: bool, ring: int, without: Sequence[int] = ()) -> None:
        """Write the dumps of all ranks but `without`; `timed`: the recorder knows which calls have begun."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in self.ranks:
            if rank.number in without:
                continue
            entries, status = [], dict[str, dict[str, int]]()
            for recorded, before, done in rank.entries:
                entry = dict(recorded) if stacks else {key: value for key, value in recorded.items() if key != "frames"}
                state = "completed" if done.ended_s is not None else "scheduled"
                state = "started" if timed and state == "scheduled" and before.ended_s is not None else state
                entry |= {"state": state, "retired": state == "completed"}
                for name, at_s in (("started", before.ended_s if timed else None), ("completed", done.ended_s)):
                    entry[f"time_discovered_{name}_ns"] = None if at_s is None else START_NS + int(at_s * 1e9)
                entries.append(entry)
                if not entry["is_p2p"]:
                    names = "last_enqueued_collective", "last_started_collective", "last_completed_collective"
                    counts = status.setdefault(str(entry["pg_id"]), dict.fromkeys(names, -1))
                    counts[names[0]] = entry["collective_seq_id"]
                    if state == "completed":
                        counts[names[2]] = entry["collective_seq_id"]
            own = {name: self.groups[name] for name in rank.own}
            config = {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, (desc, ranks) in own.items()}
            dump = {"version": "2.10", "pg_config": config, "nccl_version": "2.27.5", "pg_status": status}
            (folder / f"nccl_trace_rank_{rank.number}").write_bytes(pickle.dumps({**dump, "entries": entries[-ring:]}))

    def write_log(self, folder: Path, *, stacks: bool, heeds_signal: bool, without: Sequence[int] = ()) -> None:
        """Write the log of the job under torchrun: what the watchdogs of all ranks but `without` print.

        `stacks`: the recorder is on, so that the watchdog prints where its call was made. `heeds_signal`: ranks that
        wait in nothing answer the dump signal of the first one with their last calls.
        """
        lines: list[tuple[float, int, str]] = []
        expiries = {
            rank.number: sorted(self._expiries(rank), key=lambda each: each[0])
            for rank in self.ranks
            if rank.number not in without
        }
        first_s = min(each[0][0] for each in expiries.values() if each)
        reporter = min((each[0][0], rank) for rank, each in expiries.items() if each)[1]
        for rank, calls in expiries.items():
            for at_s, name, entry in calls:
                if at_s < first_s + 20:  # Then the first rank has dumped and aborted, and torchrun ends the others.
                    lines += [(at_s, rank, text) for text in self._caught(rank, name, entry, at_s, stacks=stacks)]
            if heeds_signal and (not calls or calls[0][0] >= first_s + 20):
                lines.append((first_s + 1, rank, self._signalled(rank, reporter)))
        folder.mkdir(parents=True, exist_ok=True)
        texts = []
        for at_s, rank, text in sorted(lines, key=lambda line: line[0]):
            clock = f"{int(at_s // 3600) % 24:02}:{int(at_s // 60) % 60:02}:{at_s % 60:012.9f}"
            texts.append(f"[rank{rank}]:[E1204 {clock} ProcessGroupNCCL.cpp:{text}")
        aborted = dict.fromkeys(rank for _, rank, text in sorted(lines) if "Watchdog caught" in text)
        texts += [
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "=" * 60, "train.py FAILED", "-" * 60, "Failures:",
            *[line for number, rank in enumerate([*aborted][1:], 1) for line in self._summary(f"[{number}]:", rank)],
            "-" * 60, "Root Cause (first observed failure):",
            *self._summary("[0]:", next(iter(aborted))),
            "=" * 60,
        ]  # fmt: skip
        (folder / "train.log").write_text("\n".join(texts) + "\n")

    def _expiries(self, rank: Rank) -> Iterator[tuple[float, str, dict[str, Any]]]:
        """Yield when the watchdog of each group finds the first call that has not ended, the group, and the call."""
        names = set()
        for entry, done in self._works(rank):
            name = entry["process_group"][0]
            if done.ended_s is None and name not in names:
                names.add(name)
                found_s = random.Random(f"{rank.number} {name}").random() / 10  # The watchdog looks every 100 ms.
                yield (entry["time_created_ns"] - START_NS) / 1e9 + TIMEOUT_MS / 1e3 + found_s, name, entry

    def _works(self, rank: Rank) -> list[tuple[dict[str, Any], Work]]:
        """Return what the watchdog follows: messages that are posted together are one piece of work."""
        together = {_message(entry) for entry, _, _ in rank.entries if entry["profiling_name"] == "nccl:coalesced"}
        return [
            (entry, done)
            for entry, _, done in rank.entries
            if _message(entry) not in together or entry["profiling_name"] == "nccl:coalesced"
        ]

    def _counts(self, rank: int, group: str) -> tuple[int, int]:
        """Return the last enqueued and the last completed position of a rank in a group."""
        works = [
            (entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"], done.ended_s is not None)
            for entry, done in self._works(self.ranks[rank])
            if entry["process_group"][0] == group
        ]
        done = [number for number, ended in works if ended]
        return (works[-1][0] if works else -1), (done[-1] if done else -1)

    def _prefix(self, rank: int, group: str) -> str:
        desc, members = self.groups[group]
        return f"[PG ID {self.ranks[rank].own.index(group)} PG GUID {group}({desc}) Rank {members.index(rank)}]"

    def _caught(self, rank: int, group: str, entry: dict[str, Any], at_s: float, *, stacks: bool) -> list[str]:
        number = entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]
        members = self.groups[group][1]
        op = entry["profiling_name"].removeprefix("nccl:").split()[0]
        size = entry["input_sizes"][0][0] if entry["input_sizes"] else 2**64 - 1  # As torch prints an unset one.
        sizes = {"_allgather_base": (size, size * len(members)), "_reduce_scatter_base": (size, size // len(members))}
        numel_in, numel_out = sizes.get(op, (size, size))
        kind = {"all_reduce": "ALLREDUCE", "all_to_all": "ALLTOALL_BASE"}.get(op, op.upper())
        enqueued, completed = self._counts(rank, group)
        ran_ms = int(1e3 * at_s - (entry["time_created_ns"] - START_NS) / 1e6)
        status = f"PG status: last enqueued work: {enqueued}, last completed work: {completed}"
        work = f"WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn={numel_in}, NumelOut={numel_out}"
        frames = "".join(
            f"\n#{at} {f['name']} from {f['filename']}:{f['line']}" for at, f in enumerate(entry["frames"])
        )
        return [
            f"683] [Rank {members.index(rank)}] Watchdog caught collective operation timeout: {work}, "
            f"Timeout(ms)={TIMEOUT_MS}) ran for {ran_ms} milliseconds before timing out.",
            f"2241] {self._prefix(rank, group)}  failure detected by watchdog at work sequence id: {number} {status}",
            f"730] Stack trace of the failed collective:{frames}\n"
            if stacks
            else "730] Stack trace of the failed "
            "collective not found, potentially because FlightRecorder is disabled. You can enable it by setting "
            "TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.",
        ]

    def _signalled(self, rank: int, reporter: int) -> str:
        enqueued, completed = self._counts(rank, "0")
        return (
            f"1804] {self._prefix(rank, '0')} Received a dump signal due to a collective timeout from  rank {reporter} "
            f"and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed "
            f"NCCL work: {completed}.This is most likely caused by incorrect usages of collectives, e.g., wrong sizes "
            "used across ranks, the order of collectives is not same for all ranks or the scheduled collective, for "
            "some reason, didn't run. "
        )

    def _summary(self, number: str, rank: int) -> list[str]:
        pid = 4000 + rank
        return [
            number, "  time      : 2026-12-04_02:07:24", "  host      : node0",
            f"  rank      : {rank} (local_rank: {rank})", f"  exitcode  : -6 (pid: {pid})", "  error_file: <N/A>",
            f"  traceback : Signal 6 (SIGABRT) received by PID {pid}",
        ]  # fmt: skip


def _message(entry: dict[str, Any]) -> tuple[str, int] | None:
    """Return the group and position of a message; None for a collective."""
    return (entry["process_group"][0], entry["p2p_seq_id"]) if entry["is_p2p"] else None


MAIN: Site = (("main", "/job/train.py", 210), ("<module>", "/job/train.py", 250))
FORWARD: Site = (("forward", "/job/model.py", 88), ("train_step", "/job/train.py", 120), *MAIN)
BACKWARD: Site = (
    ("_engine_run_backward", TORCH + "autograd/graph.py", 841), ("train_step", "/job/train.py", 124), *MAIN
)  # fmt: skip
NORM: Site = (("clip_grad_norm_", "/job/utils.py", 33), ("train_step", "/job/train.py", 128), *MAIN)
LOSS: Site = (("log_metrics", "/job/train.py", 60), *MAIN)
EVALUATE: Site = (("evaluate", "/job/train.py", 80), *MAIN)
STATISTICS: Site = (("sync_stats", "/job/stats.py", 12), *MAIN)
END: Site = (("finish", "/job/train.py", 230), ("<module>", "/job/train.py", 252))
JOIN, SYNC = Host("join"), Host("sync")
Step = Callable[[int, int, int], Iterator[Call]]  # (rank, step, micro-batches left out) -> its calls.


def log(step: int, every: int) -> Iterator[Call]:
    """Reduce and read the loss."""
    if step % every == 0:
        yield from (Collective("0", "all_reduce", 1, "Float", LOSS), SYNC)


def ddp(world: int, size: int) -> tuple[Groups, Step]:
    """Buckets of gradients behind the backward pass, and an evaluation now and then."""

    def step(rank: int, number: int, left_out: int) -> Iterator[Call]:
        yield Compute(20)
        for bucket in range(size):
            yield from (Compute(5), Collective("0", "all_reduce", 10**6 + bucket, "Float", BACKWARD, wait=False))
        yield from (JOIN, Compute(2), *log(number, 5))
        if number % 20 == 19:
            yield from (*[Compute(10), Collective("0", "all_reduce", 2, "Float", EVALUATE)] * 3, SYNC)

    return {"0": ("default_pg", [*range(world)])}, step


def fsdp(world: int, size: int) -> tuple[Groups, Step]:
    """One gather of each unit in forward and backward, one reduction of its gradients."""

    def step(rank: int, number: int, left_out: int) -> Iterator[Call]:
        for unit in range(size):
            yield from (Collective("1", "_allgather_base", 5 * 10**5 + unit, "BFloat16", FORWARD), Compute(10))
        for unit in reversed(range(size)):
            if unit < size - 1:
                yield Collective("1", "_allgather_base", 5 * 10**5 + unit, "BFloat16", BACKWARD)
            yield Compute(20)
            yield Collective("1", "_reduce_scatter_base", world * (5 * 10**5 + unit), "Float", BACKWARD, wait=False)
        yield from (JOIN, Collective("0", "all_reduce", 1, "Float", NORM), *log(number, 4))

    return {"0": ("default_pg", [*range(world)]), "1": ("mesh_dp", [*range(world)])}, step


def fsdp_tp(world: int, size: int) -> tuple[Groups, Step]:
    """Pairs of tensor parallelism, each rank's units sharded with its counterparts in the other pairs."""
    groups: Groups = {"0": ("default_pg", [*range(world)])}
    groups |= {str(1 + pair): ("mesh_tp", [2 * pair, 2 * pair + 1]) for pair in range(world // 2)}
    shards = {str(1 + world // 2 + place): ("mesh_dp", [*range(place, world, 2)]) for place in range(2)}

    def step(rank: int, number: int, left_out: int) -> Iterator[Call]:
        tp, dp = str(1 + rank // 2), str(1 + world // 2 + rank % 2)
        for site in (FORWARD, BACKWARD):
            for unit in range(size):
                yield Collective(dp, "_allgather_base", 5 * 10**5 + unit, "BFloat16", site)
                yield from [Compute(5), Collective(tp, "all_reduce", 2**18, "BFloat16", site)] * 2
                if site is BACKWARD:
                    yield Collective(dp, "_reduce_scatter_base", 10**6 + unit, "Float", site, wait=False)
        yield from (
            JOIN,
            Collective(dp, "all_reduce", 1, "Float", NORM),
            Collective(tp, "all_reduce", 1, "Float", NORM),
        )
        yield from log(number, 4)

    return groups | shards, step


def pipeline(world: int, size: int) -> tuple[Groups, Step]:
    """Two or four stages under 1F1B, replicated; neighbouring stages exchange both halves of a message at once."""
    stages = 2 if size % 2 or world < 8 else 4
    replicas, micro_batches = world // stages, 2 * stages
    groups: Groups = {"0": ("default_pg", [*range(world)])}
    groups |= {str(1 + index): ("pp", [*range(index, world, replicas)]) for index in range(replicas)}
    for stage in range(stages):
        groups[str(1 + replicas + stage)] = ("dp", [*range(stage * replicas, (stage + 1) * replicas)])

    def step(rank: int, number: int, left_out: int) -> Iterator[Call]:
        stage, replica = divmod(rank, replicas)
        group, dp, up, down = str(1 + replica), str(1 + replicas + stage), rank - replicas, rank + replicas
        first, last, size = stage == 0, stage == stages - 1, 2**19
        count = micro_batches - left_out
        warm_up = min(stages - 1 - stage, count)
        for _ in range(warm_up):
            if not first:
                yield Messages(group, (("recv", up),), size, FORWARD)
            yield from (Compute(8), Messages(group, (("send", down),), size, FORWARD))
        for at in range(count - warm_up):
            if not first and at == 0:
                yield Messages(group, (("recv", up),), size, FORWARD)
            yield Compute(8)
            if not last:
                yield Messages(group, (("send", down), ("recv", down)), size, FORWARD)
            yield Compute(16)
            if not first:
                more = () if at == count - warm_up - 1 else (("recv", up),)
                yield Messages(group, (("send", up), *more), size, BACKWARD)
        for _ in range(warm_up):
            yield from (Messages(group, (("recv", down),), size, BACKWARD), Compute(16))
            if not first:
                yield Messages(group, (("send", up),), size, BACKWARD)
        for bucket in range(3):
            yield Collective(dp, "all_reduce", 10**6 + bucket, "Float", BACKWARD, wait=False)
        yield from (JOIN, *log(number, 3))

    return groups, step


def experts(world: int, size: int) -> tuple[Groups, Step]:
    """Two groups of experts: tokens by all_to_all, dense gradients over all ranks, experts' over both groups."""
    half = world // 2
    groups: Groups = {"0": ("default_pg", [*range(world)])}
    groups |= {str(1 + index): ("ep", [*range(index * half, (index + 1) * half)]) for index in range(2)}
    groups |= {str(3 + expert): ("expert_dp", [expert, expert + half]) for expert in range(half)}

    def step(rank: int, number: int, left_out: int) -> Iterator[Call]:
        ep, dp = str(1 + rank // half), str(3 + rank % half)
        for site in (FORWARD, BACKWARD):
            for layer in range(size):
                yield from [Compute(6), Collective(ep, "all_to_all", 4096, "BFloat16", site)] * 2
                if site is BACKWARD:
                    yield Collective("0", "all_reduce", 3 * 10**5 + layer, "Float", site, wait=False)
                    yield Collective(dp, "all_reduce", 9 * 10**4 + layer, "Float", site, wait=False)
        yield from (JOIN, Collective("0", "all_reduce", 1, "Float", NORM), *log(number, 4))

    return groups, step


LAYOUTS = {"ddp": ddp, "fsdp": fsdp, "fsdp x tp": fsdp_tp, "pp x dp": pipeline, "experts": experts}
