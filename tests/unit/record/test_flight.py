import json
import os
import pickle
import signal
import socket
import time

import pytest

from dtk.config.schema import RecordConfig
from dtk.record.flight import SHARE, BlackBox, environment
from tests.patience import stretched

RANK = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from diagnostics.contract.artifacts import RunPaths
from dtk.record import flight
from dtk.record.heartbeat import HeartbeatFile
from dtk.parallel.regions import communication, observe
rank, paths = int(os.environ["RANK"]), RunPaths(Path(sys.argv[1]))
beat = HeartbeatFile(paths.heartbeat(rank), 0)
beat.start()
observe([beat])
box = flight.BlackBox(paths, rank, 0, every_s=0.2)
box.start()
dist.init_process_group("gloo")
other = dist.new_group([0, 1])
for step in range(100):
    beat.begin_step(step)
    dist.all_reduce(torch.ones(4))
dist.all_reduce(torch.ones(8), group=other)
if rank == 0:
    # Rank 1 never joins this one: rank 0 is blocked while its black box continues.
    with communication("all_reduce", 64, "dp"):
        dist.all_reduce(torch.ones(16))
else:
    print("waiting", flush=True)
    time.sleep(60)
"""

FULL_RING = """
import sys, threading, time
from pathlib import Path
import torch, torch.distributed as dist
from diagnostics.contract.artifacts import RunPaths
from dtk.record import flight
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
for _ in range(2100):
    dist.all_reduce(torch.ones(4))
paths = RunPaths(Path(sys.argv[1]))
flight.dump(paths.flight(0))
box = flight.BlackBox(paths, 0, 0, every_s=5.0)
box.snapshot()
print(box.entries_every_s(), box.cost_s)
"""

MOVING = """
import json, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from diagnostics.contract.artifacts import RunPaths
from dtk.record import flight
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
paths = RunPaths(Path(sys.argv[1]))
box = flight.BlackBox(paths, 0, 0, every_s=5.0)
def look():
    box.tick()
    ring = json.loads(paths.black_box(0).read_text())["recorders"]["host"]
    return [len(ring["entries"]), ring["pg_status"]["0"]["last_enqueued_collective"]]
dist.all_reduce(torch.ones(4))
look()
for _ in range(2):
    dist.all_reduce(torch.ones(4))
while flight.group_status()["host"]["0"]["last_completed_collective"] < 3:  # Gloo counts it after it has returned.
    time.sleep(0.01)
moving = look()
print(json.dumps({"moving": moving, "still": look()}))
"""


def test_environment_by_level(paths):
    assert environment(RecordConfig(level="off"), paths) == {}
    light = environment(RecordConfig(level="light", flight_entries=77), paths)
    assert light["TORCH_FR_BUFFER_SIZE"] == "77"
    assert light["TORCH_FR_DUMP_TEMP_FILE"] == str(paths.root.absolute() / "flight" / "watchdog_rank_")
    assert "TORCH_NCCL_ENABLE_TIMING" not in light
    assert environment(RecordConfig(level="full"), paths)["TORCH_NCCL_ENABLE_TIMING"] == "1"


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def last_entry(path):
    try:
        return json.loads(path.read_text())["recorders"]["host"]["entries"][-1]["input_sizes"]
    except (OSError, KeyError, ValueError):
        return None


@pytest.mark.timeout(90)
def test_the_black_box_of_a_killed_rank_holds_its_last_collective(paths, child):
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    common["TORCH_FR_BUFFER_SIZE"] = "2000"
    ranks = [child(RANK, paths.root, RANK=str(rank), **common) for rank in range(2)]
    assert ranks[1].stdout.readline() == "waiting\n"
    box = paths.black_box(0)
    ends_s = time.monotonic() + 30
    while last_entry(box) != [[16]] and time.monotonic() < ends_s:
        time.sleep(0.05)
    os.kill(ranks[0].pid, signal.SIGKILL)
    ranks[0].wait()
    record = json.loads(box.read_text())
    assert (record["rank"], record["step"], record["region"]) == (0, 99, "all_reduce 64 B dp")
    assert record["pid"] == ranks[0].pid
    entries = record["recorders"]["host"]["entries"]
    assert entries[-1]["profiling_name"] == "gloo:all_reduce"
    assert entries[-1]["input_sizes"] == [[16]]
    assert not entries[-1]["retired"]
    by_group = {group: [e for e in entries if e["pg_id"] == group] for group in {e["pg_id"] for e in entries}}
    assert max(len(group) for group in by_group.values()) == 64
    assert len(by_group) == 2, "a quiet group keeps its entries beside a busy one"
    assert record["recorders"]["host"]["pg_status"]["0"]["last_enqueued_collective"] == 101


@pytest.mark.timeout(90)
def test_a_full_ring_is_dumped_whole_and_boxed_cheaply(paths, child):
    process = child(FULL_RING, paths.root, TORCH_FR_BUFFER_SIZE="2000")
    output, errors = process.communicate(timeout=stretched(60))
    assert process.returncode == 0, errors
    interval_s, cost_s = map(float, output.split())
    assert interval_s >= cost_s / SHARE or interval_s >= 60
    ring = pickle.loads(paths.flight(0).read_bytes())  # noqa: S301
    assert len(ring["entries"]) == 2000
    assert ring["entries"][-1]["frames"], "the final dump has Python stacks"
    assert not list(paths.flight(0).parent.glob(".*"))


def test_dear_entries_are_renewed_less_often(paths):
    box = BlackBox(paths, 0, 0, every_s=5.0)
    assert box.entries_every_s() == 5.0
    box.cost_s = 0.03
    assert box.entries_every_s() == pytest.approx(0.03 / SHARE)
    box.cost_s = 5.0
    assert box.entries_every_s() == 60


def test_standing_still_renews_the_entries_at_once_and_moving_does_not(paths, child):
    process = child(MOVING, paths.root, TORCH_FR_BUFFER_SIZE="2000")
    output, errors = process.communicate(timeout=stretched(60))
    assert process.returncode == 0, errors
    assert json.loads(output) == {"moving": [1, 3], "still": [3, 3]}
