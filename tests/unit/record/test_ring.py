"""The ring and the wrappers that fill it: what is kept, what survives, what is given back."""

import signal
import threading

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import parse
from dtk.record import collectives, heartbeat, ring, wrappers
from dtk.record.ring import Ring
from tests.patience import stretched

taken_early = dist.isend
ORIGINALS = {name: getattr(c10d, name) for name in (*wrappers.KINDS, *wrappers.OBJECTS) if hasattr(c10d, name)}

KILLED = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from dtk.record import collectives, wrappers
from dtk.record.ring import Ring
rank = int(sys.argv[2])
made = Ring(Path(sys.argv[1]), rank, 2, 3)
made.start()
log = collectives.CollectiveLog(made)
wrappers.install(log)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
for step in range(1, 5000):
    log.begin_step(step)
    if rank == 1 and step == 3000:
        print("late", flush=True)
        time.sleep(60)
    dist.all_reduce(torch.zeros(4), op=dist.ReduceOp.MAX)
"""

PAIR = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
kept = {"isend": dist.isend, "irecv": dist.irecv}
from dtk.record import collectives, wrappers
from dtk.record.ring import Ring
rank = int(sys.argv[2])
made = Ring(Path(sys.argv[1]), rank, 2, 0)
made.start()
log = collectives.CollectiveLog(made)
wrappers.install(log)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
value = torch.full((3,), float(rank))
dist.send(value, 1, tag=9) if rank == 0 else dist.recv(value, tag=9)
other = torch.zeros(3)
ops = [dist.P2POp(kept["isend"], value, 1 - rank), dist.P2POp(kept["irecv"], other, 1 - rank)]
for work in dist.batch_isend_irecv(ops if rank == 0 else ops[::-1]):
    work.wait()
assert other.tolist() == [0.0] * 3
try:
    dist.P2POp(dist.all_reduce, value, 1 - rank)
except ValueError:
    dist.barrier()
print(next(iter(log.groups.values())).hash)
"""


def read(path):
    return RingFile(path, path.name, 0, Limits()).read()


@pytest.fixture(autouse=True)
def originals_come_back():
    yield
    assert {name: getattr(c10d, name) for name in ORIGINALS} == ORIGINALS
    assert all(getattr(dist, name) is value for name, value in ORIGINALS.items() if hasattr(dist, name))


def last(log, count=1):
    return parse(log.ring.snapshot()).records[-count:]


def test_what_the_flight_recorder_leaves_out(log):
    log.begin_step(7)
    value = torch.zeros(4, 2, dtype=torch.float64)
    dist.broadcast(value, 0)
    dist.reduce(value, 0, op=dist.ReduceOp.MIN)
    dist.all_to_all_single(torch.zeros(3), torch.zeros(3), [3], [3])
    broadcast, reduce, all_to_all = last(log, 3)
    assert (broadcast.op, broadcast.root, broadcast.dtype, broadcast.input_sizes) == (
        "broadcast",
        0,
        "float64",
        "[[4,2]]",
    )
    assert (broadcast.step, broadcast.numel, broadcast.amount) == (7, 8, 64)
    assert broadcast.group.ranks == (0,)
    assert (reduce.reduce_op, reduce.root, reduce.seq) == ("MIN", 0, broadcast.seq + 1)
    assert (all_to_all.splits, all_to_all.amount) == ("[[3],[3]]", -1)
    assert broadcast.file == __file__
    assert (broadcast.function, broadcast.line + 1) == ("test_what_the_flight_recorder_leaves_out", reduce.line)
    assert all(record.state == "finished" for record in (broadcast, reduce, all_to_all))


def test_an_object_collective_is_the_call_that_the_user_made(log):
    dist.all_gather_object([None], {"a": 1})
    sizes, payload = last(log, 2)
    assert [record.op for record in (sizes, payload)] == ["all_gather", "all_gather"]
    assert {record.user_op for record in (sizes, payload)} == {"all_gather_object"}
    assert {record.file for record in (sizes, payload)} == {__file__}


def test_asynchronous_and_failing_calls(log):
    work = dist.all_reduce(torch.zeros(2), async_op=True)
    assert last(log)[0].state == "issued" and list(log.works) == [work]
    assert work.wait() and last(log)[0].state == "finished" and not log.works
    assert work.wait()  # A second time, as torch allows.
    with pytest.raises(RuntimeError, match="invalid root"):
        dist.broadcast(torch.zeros(2), 5)
    assert last(log)[0].state == "raised"
    assert log.sound


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_one_and_the_same_collective_has_one_signature(log):
    out, part = torch.zeros(4), torch.zeros(4)
    dist.all_gather_into_tensor(out, part)
    first = last(log)[0]
    c10d._all_gather_base(out, part)
    dist.all_gather([out], part)
    records = last(log, 3)
    assert len({record.signature for record in records}) == 1
    assert [record.seq for record in records] == [first.seq, first.seq + 1, first.seq + 2]
    dist.all_reduce(out)
    dist.all_reduce(out.view(2, 2))
    dist.all_reduce(out.to(torch.float16))
    dist.all_reduce(out, op=dist.ReduceOp.MAX)
    flat, folded, half, maximum = (record.signature for record in last(log, 4))
    assert flat == folded
    assert len({flat, half, maximum}) == 3


@pytest.mark.timeout(60)
def test_p2p_is_recorded_and_may_differ_by_rank(tmp_path, child):
    ranks = [child(PAIR, tmp_path / f"rank_{rank:05d}.ring", rank, tmp_path / "store") for rank in range(2)]
    hashes = [process.communicate(timeout=stretched(50)) for process in ranks]
    assert hashes[0][0].split()[-1] == hashes[1][0].split()[-1], hashes
    sender, receiver = (read(tmp_path / f"rank_{rank:05d}.ring") for rank in range(2))
    sent = [(record.op, record.root, record.tag) for record in sender.records if record.is_p2p]
    received = [(record.op, record.root, record.tag) for record in receiver.records if record.is_p2p]
    assert sent == [("send", 1, 9), ("isend", 1, 0), ("irecv", 1, 0)]
    assert received == [("recv", None, 9), ("irecv", 0, 0), ("isend", 0, 0)]
    assert {record.seq for record in sender.records if not record.is_p2p} == {1}


def test_a_call_that_cannot_be_understood_goes_through_and_ends_comparison(log, monkeypatch):
    def broken(*args, **kwargs):
        raise TypeError("new argument")

    wrappers.remove()
    monkeypatch.setitem(wrappers.KINDS, "barrier", wrappers.Kind("barrier", "barrier", broken))
    wrappers.install(log)
    dist.barrier()
    assert not log.sound
    assert not parse(log.ring.snapshot()).sound


def test_names_that_a_module_took_early_are_wrapped_and_given_back(log):
    assert taken_early is dist.isend
    assert taken_early is not ORIGINALS["isend"]
    wrappers.remove()
    assert taken_early is ORIGINALS["isend"]
    wrappers.install(log)


def test_groups_that_are_made_anew_are_other_groups(log, tmp_path):
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/again", rank=0, world_size=1)
    dist.barrier()
    (record,) = last(log)
    assert record.group.generation == 1
    assert len({group.key for group in parse(log.ring.snapshot()).groups}) == 2


def test_it_wraps_and_texts_run_out(tmp_path, monkeypatch):
    monkeypatch.setattr(ring, "SLOTS", 16)
    monkeypatch.setattr(ring, "TABLE_BYTES", 256)
    writer = Ring(tmp_path / "r.ring", 4, 8, 1)
    writer.start()
    group = writer.add_group("pg", (0, 2, 4, 6), "desc", 0)
    for i in range(40):
        number = writer.begin(
            (group, i + 1, 1, i),
            (writer.text(f"a long name of file {i}.py:{i}\tf"), 0, writer.text("all_reduce"), 0, 0),
            (0, 0, 0, 0), (-1, 0, 5, 5, 77), False, False,
        )  # fmt: skip
        writer.end(number, group, i + 1, 2, False)
    value = read(writer.path)
    assert [record.seq for record in value.records] == list(range(25, 41))
    assert (value.rank, value.world_size, value.attempt, value.torn) == (4, 8, 1, 0)
    assert value.groups[0].ranks == (0, 2, 4, 6)
    assert value.groups[0].last_finished == 40
    assert value.records[-1].file == ""
    assert value.records[-1].step == 39


def test_where_a_mapped_page_may_stall_a_thread_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "can_map", lambda path: False)
    monkeypatch.setattr(heartbeat, "PUBLISH_EVERY_S", 0.05)
    ring = Ring(tmp_path / "r.ring", 0, 2, 0)
    ring.start()
    group = ring.add_group("pg", (0, 1), "", 0)
    for i in range(3):
        number = ring.begin((group, i + 1, 1, 1), (ring.text("t.py:1\tf"), 0, ring.text("barrier"), 0, 0),
                            (0, 0, 0, 0), (-1, 0, 0, -1, 5), False, False)  # fmt: skip
    ring.end(number, group, 3, 2, False)
    ring.close()
    for thread in threading.enumerate():
        if thread.name == "dtk-ring":
            thread.join(5)
    assert ring.path.read_bytes() == ring.snapshot()
    assert [record.state for record in read(ring.path).records] == ["started", "started", "finished"]


@pytest.mark.timeout(90)
def test_a_killed_rank_leaves_its_last_calls(tmp_path, child):
    ranks = [child(KILLED, tmp_path / f"rank_{rank:05d}.ring", rank, tmp_path / "store") for rank in range(2)]
    assert ranks[1].stdout.readline() == "late\n"
    for process in ranks:
        process.send_signal(signal.SIGKILL)
        process.wait()
    waiting, late = (read(tmp_path / f"rank_{rank:05d}.ring") for rank in range(2))
    assert late.records[-1].state == "finished"
    assert (late.records[-1].step, late.attempt, late.pid) == (2999, 3, ranks[1].pid)
    assert waiting.records[-1].reduce_op == "MAX"
    assert waiting.records[-1].seq in (late.records[-1].seq, late.records[-1].seq + 1)
    assert waiting.torn <= 1
    assert {record.signature for record in waiting.records if not record.is_p2p} == {late.records[-1].signature}


def test_shapes_that_change_every_call_do_not_grow_memory(log):
    for size in range(1, 9000):
        dist.all_reduce(torch.empty(size))
    assert len(log._plans) <= collectives._CACHE + 1
    dist.barrier()
    assert last(log)[0].op == "barrier"


def test_destroying_a_group_leaves_the_count_of_the_others(log):
    """Its members destroy it at different positions of the world group, which must continue as if nothing was."""
    dist.all_reduce(torch.zeros(2))
    before = next(iter(log.groups.values()))
    part = dist.new_group([0])
    dist.all_reduce(torch.zeros(2), group=part)
    assert len(log.groups) == 2
    dist.destroy_process_group(part)
    dist.all_reduce(torch.zeros(2))
    assert list(log.groups.values()) == [before]
    assert (before.count, last(log)[0].seq, last(log)[0].group.generation) == (2, 2, 0)
