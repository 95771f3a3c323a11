"""A process group of one rank: what each call leaves in its tensors, what is heard of it; nothing of it stays."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dtk.errors import DtkError
from dtk.record.signatures import listed
from dtk.simulate.mirror import MirrorGroup, flat, simulated_group, stand_in

RANK, SIZE = 1, 4


class Options:
    """What torch hands over with a call."""

    def __init__(self, op: Any = dist.ReduceOp.SUM, root: int = 0) -> None:
        self.reduceOp = op
        self.rootRank = root


def group() -> tuple[MirrorGroup, list[tuple[str, list[int]]]]:
    """A group and what is heard: operation and elements of its buffers."""
    heard: list[tuple[str, list[int]]] = []

    def hear(op: str, _: MirrorGroup, buffers: list[torch.Tensor]) -> None:
        heard.append((op, [buffer.numel() for buffer in buffers]))

    kind = type("Listening", (MirrorGroup,), {"heard": staticmethod(hear)})
    return kind(None, RANK, SIZE), heard


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (dist.ReduceOp.SUM, [8.0, 12.0]),
        (dist.ReduceOp.AVG, [2.0, 3.0]),
        (dist.ReduceOp.MAX, [2.0, 3.0]),
        (dist.ReduceOp.PRODUCT, [16.0, 81.0]),
    ],
)
def test_reductions_are_of_equal_values(op: Any, expected: list[float]) -> None:
    mirror, heard = group()
    tensor = torch.tensor([2.0, 3.0])
    assert mirror.allreduce([tensor], Options(op)).wait()
    assert tensor.tolist() == expected
    assert heard == [("all_reduce", [2])]


def test_options_of_newer_versions_of_torch_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.15 constructs a group of gloo with `enable_reconfigure`, and unpickles objects with `weights_only`."""
    assert MirrorGroup(None, RANK, SIZE, timeout=None, enable_reconfigure=False).size() == SIZE
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(c10d, "_tensor_to_object", lambda *arguments: calls.append(arguments))
    with stand_in(MirrorGroup):
        c10d._tensor_to_object(torch.ones(2), 2, None, True)
        assert c10d._tensor_to_object(torch.ones(0), 0, None, True) is None
    assert [arguments[1:] for arguments in calls] == [(2, None, True)]


def test_flags_are_not_multiplied() -> None:
    mirror, _ = group()
    flag = torch.tensor([True])
    mirror.allreduce([flag], Options())
    assert flag.tolist() == [True]


def test_only_the_root_gets_a_reduced_value() -> None:
    mirror, _ = group()
    here, there = torch.ones(1), torch.ones(1)
    mirror.reduce([here], Options(root=RANK))
    mirror.reduce([there], Options(root=0))
    assert (here.item(), there.item()) == (4.0, 1.0)


def test_gathers_hold_copies_of_this_rank() -> None:
    mirror, heard = group()
    parts = [torch.zeros(2) for _ in range(SIZE)]
    mirror.allgather([parts], [torch.tensor([1.0, 2.0])])
    whole = torch.zeros(8)
    mirror.all_gather_single(whole, torch.tensor([1.0, 2.0]))
    assert torch.cat(parts).tolist() == whole.tolist() == [1.0, 2.0] * SIZE
    pair = [torch.zeros(4), torch.zeros(4)]
    mirror.all_gather_single_coalesced(pair, [torch.ones(1), torch.full((1,), 5.0)])
    assert [tensor.tolist() for tensor in pair] == [[1.0] * 4, [5.0] * 4]
    assert heard == [("all_gather", [2] * 4), ("all_gather", [8]), ("all_gather", [4, 4])]


def test_a_gather_into_a_part_of_the_output_reads_it_first() -> None:
    mirror, _ = group()
    whole = torch.arange(8.0)
    mirror.all_gather_single(whole, whole[2:4])
    assert whole.tolist() == [2.0, 3.0] * SIZE


def test_scattered_sums_are_of_this_ranks_part() -> None:
    mirror, heard = group()
    output, other = torch.zeros(2), torch.zeros(2)
    mirror.reduce_scatter_single(output, torch.arange(8.0), Options())
    mirror.reduce_scatter([other], [list(torch.arange(8.0).split(2))], Options(dist.ReduceOp.AVG))
    assert (output.tolist(), other.tolist()) == ([8.0, 12.0], [2.0, 3.0])
    several = [torch.zeros(1), torch.zeros(1)]
    mirror.reduce_scatter_single_coalesced(several, [torch.arange(4.0), torch.ones(4)], Options())
    assert [tensor.item() for tensor in several] == [4.0, 4.0]
    assert [op for op, _ in heard] == ["reduce_scatter"] * 3


def test_the_root_scatters_its_parts_and_the_others_get_zeros() -> None:
    mirror, _ = group()
    mine, unknown = torch.ones(1), torch.ones(1)
    mirror.scatter([mine], [[torch.full((1,), float(rank)) for rank in range(SIZE)]])
    mirror.scatter([unknown], [])
    assert (mine.item(), unknown.item()) == (1.0, 0.0)


def test_the_root_gathers_copies() -> None:
    mirror, heard = group()
    parts = [torch.zeros(1) for _ in range(SIZE)]
    mirror.gather([parts], [torch.ones(1)])
    mirror.gather([], [torch.ones(1)])
    assert torch.cat(parts).tolist() == [1.0] * SIZE
    assert heard == [("gather", [1] * SIZE), ("gather", [1])]


def test_every_rank_sends_what_we_keep_for_ourselves_where_sizes_allow() -> None:
    mirror, _ = group()
    same, longer = torch.zeros(4), torch.ones(5)
    mirror.all_to_all_single(same, torch.arange(4.0))
    mirror.all_to_all_single(longer, torch.arange(4.0))
    assert (same.tolist(), longer.tolist()) == ([0.0, 1.0, 2.0, 3.0], [0.0] * 5)
    outputs = [torch.zeros(1) for _ in range(SIZE)]
    mirror.alltoall(outputs, [torch.full((1,), float(rank)) for rank in range(SIZE)])
    assert torch.cat(outputs).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_transfers_end_at_once() -> None:
    mirror, heard = group()
    received = torch.ones(2)
    assert mirror.send([torch.ones(3)], 2, 0).wait()
    mirror.recv([received], 2, 0)
    assert received.tolist() == [0.0, 0.0]
    anyone = mirror.recv_anysource([received], 0)
    assert anyone.wait() and anyone._source_rank() == RANK + 1
    assert heard == [("send", [3]), ("recv", [2]), ("recv", [2])]


def test_tensors_without_data_are_left_alone() -> None:
    mirror, heard = group()
    tensor = torch.empty(3, device="meta")
    mirror.allreduce([tensor], Options())
    mirror.all_gather_single(torch.empty(12, device="meta"), tensor)
    mirror.reduce_scatter_single(tensor, torch.empty(12, device="meta"), Options())
    mirror.recv([tensor], 0, 0)
    assert [op for op, _ in heard] == ["all_reduce", "all_gather", "reduce_scatter", "recv"]


def test_a_finished_work_has_its_tensors() -> None:
    mirror, _ = group()
    tensor = torch.ones(1)
    assert mirror.allreduce(tensor, Options()).get_future().wait()[0] is tensor
    assert mirror.barrier().wait()


def test_tensors_as_lists() -> None:
    item, two = torch.ones(1), torch.ones(2)
    assert listed(item)[0] is item and listed((item, two))[1] is two
    assert [tensor.numel() for tensor in flat([[item, two], [], [item]])] == [1, 2, 1]


pytestmark = pytest.mark.filterwarnings("ignore")


def test_ranks_by_node_and_nothing_left():
    gloo = c10d.ProcessGroupGloo
    with simulated_group(11, 1024, 8) as context:
        assert (context.rank, context.local_rank, context.node_rank, context.world_size) == (11, 3, 1, 1024)
        assert dist.get_rank() == 11 and dist.get_world_size(context.control) == 1024
        assert dist.get_backend() == "gloo"
    assert not dist.is_initialized() and c10d.ProcessGroupGloo is gloo


def test_nothing_left_after_an_exception():
    with pytest.raises(KeyError), simulated_group(0, 4):
        raise KeyError
    assert not dist.is_initialized()


def test_a_group_that_exists_is_not_replaced():
    with simulated_group(0, 2), pytest.raises(DtkError, match="exists already"), simulated_group(0, 2):
        pass
    with pytest.raises(DtkError, match="no such rank"), simulated_group(4, 4):
        pass


def test_every_rank_contributes_what_this_one_does():
    with simulated_group(1, 4):
        tensor = torch.full((2,), 3.0)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [12.0, 12.0]
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        assert tensor.tolist() == [12.0, 12.0]
        parts = [torch.zeros(2) for _ in range(4)]
        dist.all_gather(parts, torch.ones(2))
        assert all(part.tolist() == [1.0, 1.0] for part in parts)
        out = torch.zeros(2)
        dist.reduce_scatter_tensor(out, torch.arange(8.0))
        assert out.tolist() == [8.0, 12.0]
        received = torch.ones(2)
        dist.recv(received, 0)
        assert received.tolist() == [0.0, 0.0]
        assert dist.recv(received) == 2  # from anyone
        work = dist.all_reduce(tensor, async_op=True)
        assert work.wait() and work.get_future().wait()[0] is tensor


def test_objects():
    with simulated_group(1, 3):
        everybody = [None] * 3
        dist.all_gather_object(everybody, {"a": 1})
        assert everybody == [{"a": 1}] * 3
        unknown = [None, None]
        dist.broadcast_object_list(unknown, src=0)
        assert unknown == [None, None]
        expected = ["x", 2]
        dist.broadcast_object_list(expected, src=1)
        assert expected == ["x", 2]
        mine = [None]
        dist.scatter_object_list(mine, ["a", "b", "c"], src=1)
        assert mine == ["b"]
        dist.recv_object_list(unknown, src=0)
        assert unknown == [None, None]


def test_groups_and_point_to_point():
    with simulated_group(3, 8) as context:
        group = dist.new_group([0, 3, 5])
        assert dist.get_rank(group) == 1 and dist.get_process_group_ranks(group) == [0, 3, 5]
        assert dist.new_group([0, 1]) == dist.GroupMember.NON_GROUP_MEMBER
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, torch.ones(1), 1), dist.P2POp(dist.irecv, torch.ones(1), 1)]
        ):
            work.wait()
        dist.monitored_barrier(context.control)
        dist.destroy_process_group(group)
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_replicate", "dp_shard"))
        assert dist.get_process_group_ranks(mesh.get_group("dp_shard")) == [0, 1, 2, 3]
        assert dist.get_process_group_ranks(mesh.get_group("dp_replicate")) == [3, 7]


@pytest.mark.parametrize("hooked", [False, True])
def test_ddp_with_and_without_hook(hooked):
    """Gradients are averages over ranks that are all alike, so they equal this rank's own."""
    heard = []
    with simulated_group(1, 4, heard=lambda op, group, buffers: heard.append((op, sum(b.numel() for b in buffers)))):
        torch.manual_seed(0)
        plain = nn.Linear(3, 2)
        model = DistributedDataParallel(plain)
        if hooked:
            model.register_comm_hook(None, allreduce_hook)
        for _ in range(3):
            plain.zero_grad()
            heard.clear()
            model(torch.ones(5, 3)).sum().backward()
        assert torch.allclose(plain.weight.grad, torch.full((2, 3), 5.0))
    assert heard == [("all_reduce", 8)]


def test_fully_shard():
    with simulated_group(0, 4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp_shard",))
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
        assert model[0].weight.grad.to_local().shape == (2, 4)
        assert model[0].weight.full_tensor().shape == (8, 4)
