"""One rank of a large job alone in this process: torch.distributed works, and nothing of it stays."""

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
from dtk.simulate.mirror import simulated_group

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
        known = ["x", 2]
        dist.broadcast_object_list(known, src=1)
        assert known == ["x", 2]
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
