"""Honest inputs of every kind of evidence, made here: what the fuzzer starts from."""
# ruff: noqa: E501  # one file a line reads best

import gzip
import json
import pickle
import sqlite3
import struct
from pathlib import Path
from typing import Any

from diagnostics.evidence.ring.format import GROUP, GROUPS_AT, HEADER, MAGIC, RECORD, VERSION


def seeds(folder: Path) -> dict[str, bytes]:
    """Name -> content. The name is one that the kind could have; `folder` is for making a database."""
    dump = flight()
    return {
        "rank_0.pickle": pickle.dumps(dump, protocol=2),
        "rank_1.pkl": pickle.dumps(dump, protocol=4),
        "rank_2.json": json.dumps({**dump, "entries": [{**e, "process_group": ["0", "default_pg"]} for e in dump["entries"]]}).encode(),
        "rank_3.blackbox.json": json.dumps({"schema_version": 1, "rank": 3, "time_s": 1.0, "recorders": {"host": dump}}).encode(),
        "rank_4.ring": ring(),
        "rank5.pt.trace.json": json.dumps(trace()).encode(),
        "rank6.pt.trace.json.gz": gzip.compress(json.dumps(trace()).encode(), mtime=0),
        "rank_7.snapshot.pickle": pickle.dumps(snapshot(), protocol=4),
        "rank_8.jsonl": b"".join(json.dumps({"step": i, "time_s": 1.0 * i, "rss_bytes": i << 20, "peak_rss_bytes": i << 20}).encode() + b"\n" for i in range(20)),
        "profile.sqlite": database(folder),
        "rank_9.txt": STACKS.encode(),
        "pyspy.txt": PY_SPY.encode(),
        "attempt_0_rank_1_error.json": json.dumps({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": TRACE, "timestamp": "17"}}}).encode(),
        "rank_2_error.json": json.dumps({"schema_version": 1, "rank": 2, "type": "ValueError", "message": "x", "traceback": TRACE, "time_s": 1.0}).encode(),
        "start_0.json": START.encode(),
        "watch.json": json.dumps({"kind": "stall", "reason": "nothing moved", "culprits": [], "time_s": 1.5}, indent=2).encode(),
        "out.log": LOG.encode(),
        "plain.pickle": pickle.dumps([1, "x", {"a": (1, 2.5)}], protocol=0),
    }  # fmt: skip


def flight() -> dict[str, Any]:
    """A dump of the flight recorder."""
    entries = [
        {"record_id": i, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": i, "p2p_seq_id": 0, "op_id": i,
         "is_p2p": i % 5 == 4, "profiling_name": "nccl:send 0->1" if i % 5 == 4 else "nccl:all_reduce", "state": "completed",
         "input_sizes": [[4, 4]], "output_sizes": [[4, 4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
         "time_created_ns": 1795259550_000000000 + i, "time_discovered_completed_ns": None, "timeout_ms": 600000,
         "retired": True, "frames": [{"name": "main", "filename": "/home/u/train.py", "line": 10 + i}]}
        for i in range(12)
    ]  # fmt: skip
    return {
        "version": "2.10", "comm_lib_version": "2.27", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": 11, "last_started_collective": 11, "last_completed_collective": 10}},
        "entries": entries,
    }  # fmt: skip


def ring() -> bytes:
    """An empty ring of dtk: header, one unused group, one unused record."""
    head = HEADER.pack(MAGIC, VERSION, 0, 2, 0, 77, 1, 1, 64, 1795259550.0, b"host")
    return head.ljust(GROUPS_AT, b"\0") + bytes(GROUP.size + RECORD.size) + struct.pack("<I", 4) + bytes(60)


def trace() -> dict[str, Any]:
    """A Kineto trace of one step."""
    events = []
    for i in range(20):
        kernel = {"External id": i, "correlation": i, "stream": 7 + i % 2, "device": 0}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if i % 4 == 0 else "sgemm"
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": i * 10.5, "dur": 4.0, "args": {"External id": i}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": i * 10, "dur": 2, "args": kernel},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7 + i % 2, "ts": i * 10 + 3, "dur": 8, "args": kernel},
        ]  # fmt: skip
    events.append(
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 0, "dur": 220}
    )
    events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5, "s": "t",
                   "args": {"Bytes": 1024, "Addr": 1, "Device Type": 0, "Device Id": -1, "Total Allocated": 1024}})  # fmt: skip
    information = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": []}
    return {
        "schemaVersion": 1,
        "distributedInfo": information,
        "baseTimeNanoseconds": 17,
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }


def snapshot() -> dict[str, Any]:
    """A snapshot of the CUDA allocator."""
    frames = [{"filename": "train.py", "name": "main", "line": 3}]
    block = {"address": 4096, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": frames}
    segment = {"device": 0, "address": 4096, "total_size": 2 << 20, "allocated_size": 1024, "active_size": 1024, "stream": 0,
               "segment_type": "small", "segment_pool_id": (0, 0), "blocks": [block]}  # fmt: skip
    events = [
        {"action": "alloc", "addr": 4096 + i, "size": 512, "stream": 0, "time_us": i, "frames": frames}
        for i in range(9)
    ]
    return {"segments": [segment], "device_traces": [events], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}


def database(folder: Path) -> bytes:
    """An Nsight Systems export with a few kernels."""
    path = folder / "seed.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
        " correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);"
        "INSERT INTO StringIds VALUES (1, 'ncclDevKernel_SendRecv'), (2, 'sgemm');"
    )
    connection.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,7,?,1,?,?)",
        [(i * 10, i * 10 + 8, i, 1 + i % 2, 1 + i % 2) for i in range(20)],
    )
    connection.commit()
    connection.close()
    data = path.read_bytes()
    path.unlink()
    return data


TRACE = 'Traceback (most recent call last):\n  File "train.py", line 14, in main\n    raise ValueError("x")\nValueError: x\n'
STACKS = """# stacks at 1795259551.250 s since 1970
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f02 (most recent call first):
  File "train.py", line 9 in step
"""
PY_SPY = """Process 4711: python train.py --local_rank=2
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    epoll_wait (libc.so.6)
    train (train.py:77)
"""
LOG = f"""[rank1]: {TRACE}g:7:9 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
g:7:9 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x2 - Init START
[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, \
NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.
[rank0]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 0] Exception (either an error or timeout) \
detected by watchdog at work: 7, last enqueued NCCL work: 9, last completed NCCL work: 6.
[rank0]:[E1121 10:00:00.2 ProcessGroupNCCL.cpp:2] Stack trace of the failed collective: \

#0 all_reduce from /lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3002
#1 step from train.py:9
[rank1]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:3] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a \
collective timeout from  rank 0. Last enqueued NCCL work: 6, last completed NCCL work: 6.
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 80.00 GiB of which \
1.00 GiB is free.
[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 6000 ms
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_14:03:54
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 7299)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 7299
srun: error: node3: tasks 8-10: Killed
Fatal Python error: Aborted

Thread 0x00007f02 (most recent call first):
  File "train.py", line 9 in step
"""
START = json.dumps({
    "dtk_start": 1, "rank": 0, "world_size": 2, "state": "meets", "attempt": 0, "pid": 7, "host": "h", "since_s": 1.0,
    "alive_s": 2.0, "worked_s": 1.5, "frames": [["/w/train.py", 3, "main"]],
})  # fmt: skip
