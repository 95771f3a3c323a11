"""Functional collectives in the ring: what is kept of them, that tracing stays as it is, and what outlives SIGKILL."""

import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses import FakeTensorMode

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import parse
from dtk.record import wrappers
from dtk.record.functional import OPERATORS

WAITING = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from dtk.record import wrappers
from dtk.record.collectives import CollectiveLog
from dtk.record.ring import Ring
rank = int(sys.argv[2])
made = Ring(Path(sys.argv[1]), rank, 2, 0)
made.start()
log = CollectiveLog(made)
wrappers.install(log)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
weight = distribute_tensor(torch.ones(8, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
for step in range(1, 4):
    log.begin_step(step)
    weight.full_tensor()
os.write(1, b"planted\\n")
if rank == 0:
    weight.full_tensor()  # extra
functional.wait_tensor(functional.all_reduce(torch.ones(16), "max", dist.group.WORLD))  # next
"""

ENDS = ("# extra", "# next")


def records(log):
    return [record for record in parse(log.ring.snapshot()).records if not record.is_p2p]


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def kernels():
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {name for name in OPERATORS if has(name, "CPU") or has(name, "CUDA")}


def test_size_type_group_and_line(log):
    log.begin_step(7)
    value = torch.ones(4, 2, dtype=torch.float64)
    functional.all_reduce(value, "max", dist.group.WORLD).sum()  # here
    (record,) = records(log)
    assert (record.op, record.input_sizes, record.dtype) == ("all_reduce", "[[4,2]]", "float64")
    assert (record.reduce_op, record.amount, record.step, record.state) == ("MAX", 8, 7, "finished")
    assert (record.file, record.line, record.group.ranks) == (__file__, line_of("# here"), (0,))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_on_the_wire_they_are_what_torch_distributed_calls(log):
    """One rank may call the one and its peer the other: that is no mismatch, and other arguments are one."""
    value, world = torch.ones(6), dist.group.WORLD
    pairs = [
        (lambda: functional.all_reduce(value, "sum", world), lambda: dist.all_reduce(value)),
        (lambda: functional.broadcast(value, 0, world), lambda: dist.broadcast(value, 0)),
        (
            lambda: torch.ops._c10d_functional.all_gather_into_tensor(value, 1, world.group_name),
            lambda: dist.all_gather_into_tensor(torch.empty(6), value),
        ),
        (
            lambda: torch.ops._c10d_functional.reduce_scatter_tensor(value, "sum", 1, world.group_name),
            lambda: dist.reduce_scatter_tensor(torch.empty(6), value),
        ),
        (
            lambda: functional.all_to_all_single(value, [6], [6], world),
            lambda: dist.all_to_all_single(torch.empty(6), value, [6], [6]),
        ),
    ]
    for result, same in pairs:
        functional.wait_tensor(result())
        same()
        first, other = records(log)[-2:]
        assert (first.op, first.signature, first.amount, first.splits) == (
            other.op,
            other.signature,
            other.amount,
            other.splits,
        )
        assert first.seq + 1 == other.seq
    functional.wait_tensor(functional.all_reduce(value, "max", world))
    assert records(log)[-1].signature not in {item.signature for item in records(log)[:-1]}
    assert log.sound


def test_it_is_pending_while_somebody_waits_for_it(log):
    value = torch.ones(4)
    name = dist.group.WORLD.group_name
    handed_over = torch.ops._c10d_functional.all_reduce(value, "sum", name)
    (record,) = records(log)
    assert (record.state, record.asynchronous) == ("issued", True)

    def meanwhile(answer: str) -> str:
        assert log.open and records(log)[0].state == "started"
        (dump,) = RingFile(log.ring.path, "", 0, Limits()).load()
        assert (dump.calls[0].done, dump.calls[0].completion_known) == (False, True)
        assert list(dump.counters.values()) == [(1, 0)]
        return answer

    assert log.awaited(log.expected(handed_over), meanwhile, "done") == "done"
    assert not log.open and records(log)[0].state == "finished"
    dump = RingFile(log.ring.path, "", 0, Limits()).load()[0]
    assert list(dump.counters.values()) == [(1, 1)]
    functional.wait_tensor(handed_over)
    assert log.expected(value) is None


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_backward_calls_them_too(log):
    value = torch.ones(4, requires_grad=True)
    whole = functional.all_gather_tensor_autograd(value, 0, dist.group.WORLD)
    whole.sum().backward()  # backward
    forward, backward = records(log)
    assert (forward.op, backward.op) == ("all_gather_into_tensor", "reduce_scatter_tensor")
    assert (backward.file, backward.line) == (__file__, line_of("# backward"))


def test_several_tensors_in_one_call(log):
    name = dist.group.WORLD.group_name
    results = torch.ops._c10d_functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", name)
    for result in results:
        functional.wait_tensor(result)
    (record,) = records(log)
    assert (record.op, record.input_sizes, record.state) == ("all_reduce_coalesced", "[[2],[3]]", "finished")


def test_one_that_fails_is_said_to_and_raises_as_ever(log):
    with pytest.raises(RuntimeError, match="roup"):
        torch.ops._c10d_functional.broadcast(torch.ones(2), 5, dist.group.WORLD.group_name)
    with pytest.raises(RuntimeError, match="roup"):
        torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", "no such group")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_tracing_is_left_alone(log):
    def step(value, weight):
        reduced = functional.all_reduce(value @ weight, "sum", dist.group.WORLD)
        return (functional.all_gather_tensor(reduced, 0, dist.group.WORLD) * 2).sum()

    values = torch.ones(4, 4), torch.ones(4, 4)
    expected = step(*values)
    seen = [(item.op, item.signature) for item in records(log)]
    assert len(seen) == 2
    with FakeTensorMode():
        functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).sum()
    traced = torch.fx.experimental.proxy_tensor.make_fx(step, tracing_mode="fake")(*values)
    assert len(records(log)) == 2, "a fake call was recorded"
    assert traced(*values) == expected
    text = torch._dynamo.explain(step)(*values)
    assert (text.graph_break_count, text.graph_count) == (0, 1)
    before = len(records(log))
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        assert compiled(*values) == expected
    result = records(log)[before:]
    assert [(item.op, item.signature) for item in result] == 2 * seen
    assert {(item.file, item.function.rpartition(".")[2]) for item in result} == {(__file__, "step")}


def test_kernels_are_given_back(log, monkeypatch):
    assert {name for name in OPERATORS if "all_" in name} <= kernels()
    wrappers.remove()
    assert kernels() == set()
    before = len(records(log))
    assert functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).sum() == 4
    assert len(records(log)) == before
    # The operator that this torch lacks comes first, so that it would stop those after it.
    lacking = {"_c10d_functional::of_a_later_torch": OPERATORS["_c10d_functional::all_reduce"], **OPERATORS}
    monkeypatch.setattr("dtk.record.functional.OPERATORS", lacking)
    wrappers.install(log)
    functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).sum()
    assert len(records(log)) == before + 1


@pytest.mark.timeout(90)
def test_a_mismatch_is_explained_though_both_ranks_were_killed(tmp_path, child):
    """Neither leaves more than its ring; by the program's text rank 0 alone makes the extra call."""
    job, folder = tmp_path / "job.py", tmp_path / "flight"
    job.write_text(WAITING)
    start = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0])"
    paths = [folder / f"rank_{rank:05d}.ring" for rank in range(2)]
    ranks = [child(start, job, path, rank, tmp_path / "store") for rank, path in enumerate(paths)]
    assert [process.stdout.readline() for process in ranks] == ["planted\n"] * 2
    time.sleep(1.0)
    for process in ranks:
        process.send_signal(signal.SIGSTOP)  # Neither may see the other go.
    for process in ranks:
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = [RingFile(path, "", rank, Limits()).read().records[-1] for rank, path in enumerate(paths)]
    assert [(item.op, item.input_sizes, item.state) for item in last] == [
        ("all_gather_into_tensor", "[[4,4]]", "started"),
        ("all_reduce", "[[16]]", "started"),
    ]
    assert last[0].seq == last[1].seq
    first = diagnose(folder).root_causes[0]
    assert (first.cause, first.ranks) == ("hang.conditional_collective", (0,)), text_of(first).summary
    lines = WAITING.splitlines()
    marked = {rank: next(i for i, line in enumerate(lines, 1) if line.endswith(end)) for rank, end in enumerate(ENDS)}
    assert {where.rank: (where.file, where.line) for where in first.where} == {
        rank: (str(job), line) for rank, line in marked.items()
    }
    for text in ("all_gather_into_tensor [4, 4] float32", "all_reduce [16] float32 MAX"):
        assert text in text_of(first).summary
