"""One rank that tries a tiny collective of each kind. Run by `dtk.doctor.rank` in a process of its own.

Checks every result. One JSON line before and after each, so that the place of a rank that does not come back is known.
"""

import argparse
import datetime
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from dtk.parallel import loopback

ELEMENTS = 256
REPEATS = 3


def main(arguments: argparse.Namespace, say: Callable[[dict[str, Any]], None]) -> int:
    """Meet the others, try everything, leave; `say` writes a line for the parent."""
    timeout = datetime.timedelta(seconds=arguments.timeout_s)
    device = torch.device("cpu")
    if arguments.backend == "nccl":
        device = torch.device("cuda", arguments.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    say({"begin": "meeting"})
    if arguments.serve and loopback.is_loopback(arguments.host):
        store = loopback.serve_store(arguments.port, arguments.timeout_s)
    else:
        store = TCPStore(
            arguments.host, arguments.port, is_master=arguments.serve, timeout=timeout, wait_for_workers=False
        )
    dist.init_process_group(
        arguments.backend,
        store=PrefixStore(arguments.prefix, store),
        rank=arguments.rank,
        world_size=arguments.world_size,
        timeout=timeout,
        device_id=device if arguments.backend == "nccl" else None,
    )
    say({"met": arguments.world_size})
    for name, collective in COLLECTIVES.items():
        say({"begin": name})
        say({"done": name, **_timed(collective, device)})
    say({"begin": "leaving"})
    dist.barrier()  # A rank that serves the store must not go before the others have come.
    return 0


def _timed(collective: Callable[[torch.device], bool], device: torch.device) -> dict[str, Any]:
    """Whether a collective gives what it must, and the time of the fastest repeat in ms."""
    right, best_s = collective(device), float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        right = collective(device) and right
        best_s = min(best_s, time.perf_counter() - began)
    return {"right": right, "ms": round(best_s * 1e3, 3)}


def _full(value: float, device: torch.device, parts: int = 1) -> torch.Tensor:
    return torch.full((parts * ELEMENTS,), float(value), device=device)


def _is(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor == value).all().item())


def _sum() -> float:
    world_size = dist.get_world_size()
    return world_size * (world_size + 1) / 2


def _ranks_in(tensor: torch.Tensor) -> bool:
    """Whether part r of a tensor holds r + 1."""
    return all(_is(part, rank + 1) for rank, part in enumerate(tensor.chunk(dist.get_world_size())))


def _barrier(device: torch.device) -> bool:
    dist.barrier()
    return True


def _broadcast(device: torch.device) -> bool:
    tensor = _full(dist.get_rank() + 1, device)
    dist.broadcast(tensor, src=0)
    return _is(tensor, 1)


def _all_reduce(device: torch.device) -> bool:
    tensor = _full(dist.get_rank() + 1, device)
    dist.all_reduce(tensor)
    return _is(tensor, _sum())


def _reduce(device: torch.device) -> bool:
    tensor = _full(dist.get_rank() + 1, device)
    dist.reduce(tensor, dst=0)
    return dist.get_rank() != 0 or _is(tensor, _sum())


def _all_gather(device: torch.device) -> bool:
    gathered = _full(0, device, dist.get_world_size())
    dist.all_gather_into_tensor(gathered, _full(dist.get_rank() + 1, device))
    return _ranks_in(gathered)


def _reduce_scatter(device: torch.device) -> bool:
    part = _full(0, device)
    dist.reduce_scatter_tensor(part, _full(dist.get_rank() + 1, device, dist.get_world_size()))
    return _is(part, _sum())


def _all_to_all(device: torch.device) -> bool:
    received = _full(0, device, dist.get_world_size())
    dist.all_to_all_single(received, _full(dist.get_rank() + 1, device, dist.get_world_size()))
    return _ranks_in(received)


def _gather(device: torch.device) -> bool:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = [_full(0, device) for _ in range(world_size)] if rank == 0 else None
    dist.gather(_full(rank + 1, device), parts, dst=0)
    return parts is None or _ranks_in(torch.cat(parts))


def _scatter(device: torch.device) -> bool:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    part = _full(0, device)
    dist.scatter(part, [_full(r + 1, device) for r in range(world_size)] if rank == 0 else None, src=0)
    return _is(part, rank + 1)


def _send_recv(device: torch.device) -> bool:
    """Around the ring."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return True
    received = _full(0, device)
    before, after = (rank - 1) % world_size, (rank + 1) % world_size
    sends = dist.P2POp(dist.isend, _full(rank + 1, device), after)
    receives = dist.P2POp(dist.irecv, received, before)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()
    return _is(received, before + 1)


COLLECTIVES: dict[str, Callable[[torch.device], bool]] = {
    "barrier": _barrier,
    "broadcast": _broadcast,
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "send_recv": _send_recv,
}
