"""A script that reads what collectives return, or whose transfers are of other lengths; chosen by its argument.

Each wrong line ends in `# wrong: NAME`.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def decide(rank: int, size: int) -> None:
    """Every result is looked at; one that is made up raises."""
    count = torch.tensor([3.0 + rank])
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    for _ in range(int(count)):
        work = dist.all_reduce(count, async_op=True)
        assert work is not None
        work.wait()
    assert count.item() == 3.0 * size**3
    parts = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(parts, torch.tensor([rank / 2]))
    assert [part.item() for part in parts] == [other / 2 for other in range(size)]
    flag = torch.tensor([float(rank == 1)])
    dist.broadcast(flag, src=1)
    if not flag.item():
        dist.barrier()
    mine = torch.zeros(2)
    dist.reduce_scatter_tensor(mine, torch.arange(2.0 * size) + rank)
    assert mine.tolist() == [size * (2 * rank + i) + sum(range(size)) for i in range(2)]
    sizes = torch.zeros(size, dtype=torch.int64)
    dist.all_to_all_single(sizes, torch.arange(size) + rank + 1)
    assert sizes.tolist() == [rank + other + 1 for other in range(size)]
    rows = torch.empty(int(sizes.sum()))
    dist.all_to_all_single(rows, torch.ones(int(sizes.sum())), sizes.tolist(), (torch.arange(size) + rank + 1).tolist())
    length = torch.tensor([rank + 2])
    if rank:
        dist.recv(length, rank - 1)
        dist.recv(torch.empty(int(length)), rank - 1)
    if rank + 1 < size:
        dist.send(length + 1, rank + 1)
        dist.send(torch.ones(int(length) + 1), rank + 1)


def objects(rank: int, size: int) -> None:
    """Of every rank, each of another length."""
    mine = {"rank": rank, "text": "x" * 100 * rank}
    everybody: list[dict[str, int | str] | None] = [None] * size
    dist.all_gather_object(everybody, mine)
    assert [item["rank"] for item in everybody if item] == list(range(size))
    some: list[dict[str, int | str] | None] | None = [None] * size if rank == 1 else None
    dist.gather_object(mine, some, dst=1)
    assert some is None or [item["rank"] for item in some if item] == list(range(size))
    text = [rank, "x" * rank]
    dist.broadcast_object_list(text, src=size - 1)
    assert text[0] == size - 1
    got: list[int | None] = [None]
    dist.scatter_object_list(got, [10 + other for other in range(size)] if rank == 1 else None, src=1)
    assert got == [10 + rank]


def uneven(rank: int, scale: float) -> None:
    """More batches on odd ranks, other parameters and data on all; under Join they end together."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for _ in range(3 + rank % 2):
            model(scale * torch.randn(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, next(model.parameters()).detach().norm())
    assert len({norm.item() for norm in norms}) == 1
    dist.barrier()


def stops(rank: int) -> None:
    """Rank 1 leaves the loop and ends."""
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(1 if rank == 1 else 3):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()


def main(case: str) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    uneven_rows = [3 if rank == 1 and other == 0 else 1 for other in range(size)]
    if case == "decide":
        decide(rank, size)
    if case == "objects":
        objects(rank, size)
    if case == "join":
        uneven(rank, 1.0)
    if case == "split":
        rows = torch.ones(sum(uneven_rows))
        dist.all_to_all_single(torch.empty(size), rows, [1] * size, uneven_rows)  # wrong: split
    if case == "lists":
        rows = [torch.ones(count) for count in uneven_rows]  # type: ignore[assignment]
        dist.all_to_all([torch.empty(1) for _ in range(size)], rows)  # type: ignore[arg-type]  # wrong: lists
    if case == "gathered":
        dist.all_gather([torch.empty(1) for _ in range(size)], torch.ones(1 + (rank == 1)))  # wrong: gathered
    if case == "scattered":
        lengths = [2, 2] if rank == 0 else [1, 3]
        dist.reduce_scatter(torch.empty(lengths[rank]), [torch.ones(length) for length in lengths])  # wrong: scattered
    if case == "sent" and rank == 1:
        dist.send(torch.ones(3), 0)  # wrong: sent
    if case == "sent" and rank == 0:
        dist.recv(torch.ones(1), 1)
    if case == "root":
        dist.broadcast(torch.ones(1), src=rank)  # wrong: root
    if case == "stops":
        stops(rank)
    if case == "all raise":
        raise ValueError("no data")


if __name__ == "__main__":
    main(sys.argv[1])
