"""Scripts that cut the model by torch: tensor parallel, a pipeline, experts. Arguments: which one, and `wrong`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def tensor(wrong: bool) -> None:
    """DTensor over tp and fully_shard over dp; one rank leaves the loop early."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        model(torch.randn(4, 8)).square().mean().backward()
        if wrong and dist.get_rank() == 1 and step == 1:
            break
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def pipeline(wrong: bool) -> None:
    """A stage on each rank; the last one assumes fewer micro-batches, and its targets then have another shape."""
    rank, size = dist.get_rank(), dist.get_world_size()
    block = Block()
    count = size if wrong and rank == size - 1 else 2 * size
    stage = PipelineStage(block, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=count, loss_fn=lambda out, y: (out - y).square().mean())
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    x = torch.randn(4 * size, 8)
    for _ in range(STEPS):
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=x)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()


def experts(wrong: bool) -> None:
    """Rows travel to the ranks of their experts, in numbers that depend on data; one rank expects a row too many."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    for step in range(STEPS):
        rows, to = torch.randn(16, 8), torch.randint(0, size, (16,))
        counts = torch.bincount(to, minlength=size)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sent, taken = counts.tolist(), arriving.tolist()
        if wrong and rank == 1 and step == 1:
            taken[0] += 1
        got = torch.empty(sum(taken), 8)
        dist.all_to_all_single(got, rows[to.argsort(stable=True)], taken, sent)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    {"tensor": tensor, "pipeline": pipeline, "experts": experts}[sys.argv[1]](sys.argv[-1] == "wrong")
    dist.destroy_process_group()
