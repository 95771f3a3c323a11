"""A training script with a mistake in it, chosen by its argument. Each wrong line ends in `# wrong: NAME`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class Branched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.branch = nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor, branch: bool = True) -> torch.Tensor:
        x = self.second(self.first(x))
        return self.branch(x) if branch else x


def main(case: str) -> None:
    if case == "no_group":
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model: nn.Module = Branched()
    if case in ("unused", "new_group", "raises", "early", "healthy_ddp"):
        model = DistributedDataParallel(model)
    else:
        for layer in model.children():
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=False)
    groups = [dist.new_group(list(range(size))), dist.new_group(list(range(size)))]
    if case == "new_group":
        halves = [[0, 1], [2, 3]]
        for half in halves[::-1] if rank == 3 else halves:
            dist.new_group(half)  # wrong: new_group
    agree(rank, size)
    for step in range(3):
        if case == "early" and rank == 2 and step == 1:
            break  # wrong: early
        if case == "raises" and rank == 3 and step == 1:
            raise ValueError("bad sample")  # wrong: raises
        x = torch.randn(4, 8)
        y = model(x, branch=not (case == "unused" and rank == 1))
        if case == "forward" and rank == 1:
            y = y + model(x)  # wrong: forward
        if y.sum().item() > 1e30:
            dist.barrier()
        y.sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        after_step(case, model, rank, size, groups)
    if case == "state_dict" and rank == 0:
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))  # wrong: state_dict
    dist.barrier()
    torch.save(model.state_dict(), "model.pt")
    with open("log.txt", "w") as log:  # noqa: PTH123
        log.write("done")
    dist.destroy_process_group()


def agree(rank: int, size: int) -> None:
    """What needs the values of other ranks."""
    everybody: list[dict[str, int] | None] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank})
    setting = [{"names": ["a", "b"]}] if rank == 0 else [None]
    dist.broadcast_object_list(setting, src=0)
    assert setting[0] == {"names": ["a", "b"]}
    if rank == size - 1:
        dist.send_object_list(["from the last"], dst=0)
    elif rank == 0:
        heard = [None]
        dist.recv_object_list(heard, src=size - 1)
        assert heard == ["from the last"]


def after_step(case: str, model: nn.Module, rank: int, size: int, groups: list[dist.ProcessGroup]) -> None:
    if case == "full_tensor" and rank == 0:
        sum(p.full_tensor().norm() for p in model.parameters())  # type: ignore[attr-defined]  # wrong: full_tensor
    if case == "evaluation" and rank == 0:
        with torch.no_grad():
            model(torch.randn(2, 8))  # wrong: evaluation
    if case == "barrier" and rank == 0:
        dist.barrier()  # wrong: barrier
    if case == "group_order":
        for group in groups if rank % 2 else groups[::-1]:
            dist.all_reduce(torch.ones(4), group=group)  # wrong: group_order
    if case == "receive_first":
        dist.recv(torch.empty(4), src=(rank - 1) % size)  # wrong: receive_first
        dist.send(torch.ones(4), dst=(rank + 1) % size)
    if case == "shape":
        dist.all_reduce(torch.ones(4 if rank != 2 else 5))  # wrong: shape
    if case == "dtype":
        dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 2 else torch.float32))  # wrong: dtype
    if case == "root":
        dist.broadcast(torch.ones(4), src=1 if rank == 3 else 0)  # wrong: root


if __name__ == "__main__":
    main(sys.argv[1])
