"""What small jobs with each cause leave behind: flight-recorder dumps in torch's JSON form, logs, start files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.unit.diagnostics.causes.examples import Example

Files = Mapping[str, str | bytes]
_START_NS = 1_790_000_000_000_000_000
_DTYPE = "Float"


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded call."""

    op: str = "all_reduce"
    size: int = 1024
    line: int = 12
    done: bool = True
    group: str = "0"
    function: str = "train"
    at_s: float | None = None
    """Seconds after the start; default: its number."""
    peer: int | None = None
    """Of a send or receive."""
    backward: bool = False
    """Whether autograd makes the call."""


STEP = (Entry(line=12), Entry("all_gather", 64, 14))
_LOST = (
    '[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/job/train.py", line 12, in train\n'
    "[rank{rank}]:     dist.all_reduce(loss)\n[rank{rank}]: RuntimeError: "
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41423\n"
)


def dumps(
    calls: Mapping[int, Sequence[Entry]], backend: str = "nccl", groups: Mapping[str, Sequence[int]] | None = None
) -> dict[str, str | bytes]:
    """Return the flight-recorder dumps of all ranks.

    Args:
        calls: rank -> its calls, oldest first.
        backend: `nccl` or `gloo`.
        groups: name -> ranks, besides the default group `0`.
    """
    members = {"0": sorted(calls), **(groups or {})}
    return {f"flight_rank_{rank}": json.dumps(_dump(rank, calls[rank], backend, members)) for rank in calls}


def _dump(rank: int, calls: Sequence[Entry], backend: str, members: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    own = [name for name in sorted(members) if rank in members[name]]
    counts: dict[tuple[str, bool], int] = {}
    entries: list[dict[str, Any]] = []
    status: dict[str, dict[str, int]] = {}
    for number, call in enumerate(calls):
        p2p = call.peer is not None
        seq = counts[call.group, p2p] = counts.get((call.group, p2p), 0) + 1
        arrow = f" {rank}{'->' if call.op == 'send' else '<-'}{call.peer}" if p2p else ""
        pg_id = own.index(call.group)
        at_ns = _START_NS + int((number if call.at_s is None else call.at_s) * 1e9)
        counters = status.setdefault(str(pg_id), {"last_enqueued_collective": -1, "last_completed_collective": -1})
        counters["last_enqueued_collective"] = seq
        if call.done:
            counters["last_completed_collective"] = seq
        entries.append(
            {
                "record_id": number,
                "pg_id": pg_id,
                "process_group": [call.group, "default_pg" if call.group == "0" else "undefined"],
                "collective_seq_id": 0 if p2p else seq,
                "p2p_seq_id": seq if p2p else 0,
                "op_id": seq,
                "profiling_name": f"{backend}:{call.op}{arrow}",
                "time_created_ns": at_ns,
                "input_sizes": [[call.size]],
                "input_dtypes": [_DTYPE],
                "output_sizes": [[call.size]],
                "output_dtypes": [_DTYPE],
                "state": "completed" if call.done and backend == "nccl" else "scheduled",
                "retired": call.done,
                "timeout_ms": 600_000,
                "is_p2p": p2p,
                "frames": [
                    *(
                        [{"name": "backward", "filename": "/site-packages/torch/_tensor.py", "line": 660}]
                        * call.backward
                    ),
                    {"name": call.function, "filename": "/job/train.py", "line": call.line},
                    {"name": "main", "filename": "/job/train.py", "line": 90},
                ],
            }
        )
    config = {
        name: {"name": name, "desc": "default_pg" if name == "0" else "undefined", "ranks": str(list(members[name]))}
        for name in own
    }
    return {
        "version": "2.10",
        "pg_config": config,
        "comm_lib_version": "2.27.3",
        "pg_status": status,
        "entries": entries,
    }


def _stuck(*calls: Entry) -> tuple[Entry, ...]:
    """Return the calls with the last one marked as incomplete."""
    return (*calls[:-1], replace(calls[-1], done=False))


def raised() -> Files:
    """Rank 2 raises in its data; the connections of its peers break."""
    own = (
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/job/train.py", line 90, in main\n'
        '[rank2]:     batch = load(step)\n[rank2]:   File "/job/data.py", line 44, in load\n'
        "[rank2]:     raise ValueError('bad batch')\n[rank2]: ValueError: bad batch\n"
    )
    return {"torchrun.log": own + "".join(_LOST.format(rank=rank) for rank in (0, 1, 3))}


def out_of_memory() -> Files:
    """Rank 1 runs out of device memory."""
    own = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/train.py", line 30, in train\n'
        "[rank1]:     loss.backward()\n[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 "
        "GiB. GPU 1 has a total capacity of 79.11 GiB of which 1.20 GiB is free.\n"
    )
    return {"torchrun.log": own + _LOST.format(rank=0)}


def killed() -> Files:
    """Slurm reports that a task was killed."""
    return {"slurm-124.out": "step 10 loss 2.1\nsrun: error: node1: task 1: Killed\nsrun: Terminating StepId=124.0\n"}


def exited() -> Files:
    """Slurm reports that a task left with an exit code of its own."""
    return {"slurm-125.out": "step 10 loss 2.1\nsrun: error: node1: task 1: Exited with exit code 3\n"}


def late_host() -> Files:
    """Rank 2 never reaches the next call of its peers; its stack shows a queue."""
    files = dumps({rank: STEP if rank == 2 else _stuck(*STEP, STEP[0]) for rank in range(4)})
    stack = (
        'Current thread 0x00007f0000000000 (most recent call first):\n  File "/usr/lib/python3.11/queue.py", line 171 '
        'in get\n  File "/job/data.py", line 7 in next_batch\n  File "/job/train.py", line 90 in main\n'
    )
    return {**files, "stacks/rank_00002.txt": stack}


def lagging_device() -> Files:
    """Rank 2's device completes nothing after its first call, while those of the others complete all."""
    program = [Entry(size=size, line=size) for size in range(1, 9)]
    frozen = [program[0], *(Entry(size=size, line=size, done=False) for size in range(2, 9))]
    return dumps({rank: frozen if rank == 2 else program for rank in range(4)})


def slow_rank() -> Files:
    """Rank 1 comes half a second late to each step; everything completes."""
    calls = {
        rank: [
            Entry(op, size, line, at_s=step + (0.5 if rank == 1 and not part else 0.0) + 0.6 * part)
            for step in range(6)
            for part, (op, size, line) in enumerate((("all_reduce", 1024, 12), ("all_gather", 64, 14)))
        ]
        for rank in range(4)
    }
    return dumps(calls)


def groups_in_two_orders() -> Files:
    """Two ranks use two groups in opposite orders; the others wait for both."""
    first, second, last = Entry(group="1", line=11), Entry(group="2", line=12), Entry("barrier", line=30)
    calls = {0: _stuck(first), 1: _stuck(second), 2: _stuck(last), 3: _stuck(last)}
    return dumps(calls, groups={"1": (0, 1), "2": (0, 1)})


def receives_in_a_ring() -> Files:
    """Both ranks receive before they send."""
    return dumps({rank: _stuck(STEP[0], Entry("recv", line=70, peer=1 - rank)) for rank in range(2)})


def completes_nowhere() -> Files:
    """All ranks are in the first call of their group."""
    return dumps({rank: _stuck(STEP[0]) for rank in range(4)})


def never_came() -> Files:
    """Rank 0 waits in init_process_group; rank 1 stands still before it, as `dtk watch` records it."""
    files = {}
    for rank, state in enumerate(("meets", "started")):
        start = {"dtk_start": 1, "rank": rank, "world_size": 2, "attempt": 0, "pid": 100 + rank, "state": state}
        times = {"host": "node-1", "since_s": 1.79e9, "alive_s": 1.79e9 + 40, "worked_s": 1.79e9}
        frames = {"frames": [["/job/train.py", 4 + rank, "setup"]]}
        files[f"start/attempt_0/rank_{rank:05d}.json"] = json.dumps({**start, **times, **frames})
    return files


def other_operation() -> Files:
    """Rank 1 broadcasts where its peers reduce."""
    other = Entry("broadcast", line=11)
    return dumps({rank: _stuck(*STEP, other if rank == 1 else Entry(line=13)) for rank in range(4)})


def other_size() -> Files:
    """Rank 1 reduces another number of elements at the same line."""
    return dumps({rank: _stuck(*STEP, Entry(size=1000 if rank == 1 else 1024)) for rank in range(4)})


def only_rank_0() -> Files:
    """Rank 0 logs a metric that only it reduces."""
    metric = Entry(size=1, line=50, function="log_metrics")
    calls = {rank: _stuck(*STEP * 3, STEP[0]) for rank in range(1, 4)}
    return dumps({0: _stuck(*STEP * 3, metric), **calls})


def one_step_fewer() -> Files:
    """Rank 1 leaves the loop one step before the others."""
    last = Entry("barrier", line=30, function="finish")
    return dumps({rank: _stuck(*STEP * (3 if rank == 1 else 4), last if rank == 1 else STEP[0]) for rank in range(4)})


def bucket_not_ready() -> Files:
    """Rank 1 leaves the backward pass of the second step without DDP's last bucket."""
    buckets = tuple(Entry(size=size, line=60, backward=True) for size in (100, 200, 300))
    loss = Entry(size=1, line=70)
    return dumps({0: _stuck(*buckets, loss, *buckets), 1: _stuck(*buckets, loss, *buckets[:2], loss)})


def first_collective() -> Files:
    """Two ranks whose first all_gather timed out."""
    return {"train.log": "".join(map(_timed_out_first, range(2)))}


def _timed_out_first(rank: int) -> str:
    return (
        f"[rank{rank}]:[E606 09:09:08.16 ProcessGroupNCCL.cpp:757] [Rank {rank}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1, OpType=ALLGATHER, NumelIn=1, NumelOut=2, Timeout(ms)=600000) ran for 600004 "
        f"milliseconds before timing out.\n[rank{rank}]:[E606 09:09:08.17 ProcessGroupNCCL.cpp:2395] [PG ID 0 PG GUID "
        f"0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: 1 PG status: last enqueued "
        "work: 1, last completed work: -1\n"
    )


EXAMPLES = {
    "hang.collective_mismatch": Example(other_operation, (1,)),
    "hang.conditional_collective": Example(only_rank_0, (0,)),
    "hang.device_stall": Example(lagging_device, (2,)),
    "hang.group_order": Example(groups_in_two_orders, (0, 1)),
    "hang.host_stall": Example(late_host, (2,)),
    "hang.network": Example(completes_nowhere),
    "hang.p2p_cycle": Example(receives_in_a_ring, (0, 1)),
    "hang.rank_exited": Example(exited, (1,), "crashed"),
    "hang.rank_killed": Example(killed, (1,)),
    "hang.rank_oom": Example(out_of_memory, (1,)),
    "hang.rank_raised": Example(raised, (2,)),
    "hang.rendezvous": Example(never_came, (1,)),
    "hang.signature_mismatch": Example(other_size, (1,)),
    "hang.startup": Example(first_collective),
    "hang.straggler": Example(slow_rank, (1,)),
    "hang.uneven_iterations": Example(one_step_fewer, (1,)),
    "hang.unused_parameters": Example(bucket_not_ready, (1,)),
}
