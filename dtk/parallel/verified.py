"""Runs collectives on real buffers and verifies the results element by element. Runs in a rank."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtk.parallel.collectives import all_gather_single, reduce_scatter_single

KINDS = (
    *("barrier", "broadcast", "all_reduce", "reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("gather", "scatter", "send_recv"),
)
IN_PLACE = ("barrier", "broadcast", "all_reduce", "reduce")  # Collectives whose result overwrites the input.
_PERIOD = 7  # Every seventh element is 1: sums stay exact in bfloat16 up to 1,792 ranks, in int8 up to 889.
_VALUES = 101
"""Distinct values of elements that are only moved; exact in every dtype. Coprime to shard sizes, like `_PERIOD`."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Input and output of one operation at one size; the same tensor if it works in place."""

    source: Tensor
    target: Tensor
    call: Callable[[], Any]


def make(name: str, size_bytes: int, dtype: torch.dtype, device: torch.device) -> Buffers:
    """Return zero-filled buffers (repeated in-place sums would overflow otherwise) and the call on them.

    `size_bytes` is that of one rank's buffer, or of all shards together; it is rounded to ranks and dtype.
    """
    ranks = dist.get_world_size()
    count = size_bytes // dtype.itemsize
    share = count // ranks
    source = torch.zeros(share if name in ("all_gather", "gather") else count, dtype=dtype, device=device)
    target = source
    if name not in IN_PLACE:
        target = torch.zeros(share if name in ("reduce_scatter", "scatter") else count, dtype=dtype, device=device)
    whole = None  # Only the first rank has the whole input or output.
    if dist.get_rank() == 0:
        whole = list((target if name == "gather" else source).chunk(ranks))
    # Each call waits as the library does: on the host under gloo, on the stream under NCCL.
    calls: dict[str, Callable[[], Any]] = {
        "barrier": dist.barrier,
        "broadcast": lambda: dist.broadcast(source, src=0),
        "all_reduce": lambda: dist.all_reduce(source),
        "reduce": lambda: dist.reduce(source, dst=0),
        "gather": lambda: dist.gather(source, whole, dst=0),
        "scatter": lambda: dist.scatter(target, whole, src=0),
        "all_gather": lambda: all_gather_single(target, source),
        "reduce_scatter": lambda: reduce_scatter_single(target, source),
        "all_to_all": lambda: dist.all_to_all_single(target, source),
        "send_recv": lambda: _exchange(source, target),
    }
    return Buffers(source, target, calls[name])


def wrong_elements(name: str, buffers: Buffers) -> int:
    """Call once on known values; return the number of wrong elements in this rank's result."""
    source = buffers.source
    positions = torch.arange(source.numel(), device=source.device)

    def sent(rank: int) -> Tensor:
        if "reduce" in name:
            return ((positions + rank) % _PERIOD == 0).to(torch.int32)
        return (positions + 13 * (rank + 1)) % _VALUES

    source.copy_(sent(dist.get_rank()))
    if buffers.target is not source:
        buffers.target.zero_()
    buffers.call()
    expected = _expected(name, sent)
    wrong = 0 if expected is None else int((buffers.target != expected.to(buffers.target.dtype)).sum())
    source.zero_()
    return wrong


def _expected(name: str, sent: Callable[[int], Tensor]) -> Tensor | None:
    """Return the correct result on this rank if each rank sends `sent(rank)`; None if the operation has none."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if name == "barrier" or (name in ("reduce", "gather") and rank):
        return None
    if name == "send_recv":
        return sent((rank - 1) % ranks)
    if name in ("broadcast", "scatter"):
        return sent(0) if name == "broadcast" else sent(0).chunk(ranks)[rank]
    inputs = map(sent, range(ranks))  # One rank at a time: the data of many ranks would not fit into memory.
    if name in ("all_reduce", "reduce"):
        return reduce(torch.add, inputs)
    if name in ("all_gather", "gather"):
        return torch.cat(list(inputs))
    for_this_rank = (tensor.chunk(ranks)[rank].clone() for tensor in inputs)
    return reduce(torch.add, for_this_rank) if name == "reduce_scatter" else torch.cat(list(for_this_rank))


def _exchange(source: Tensor, target: Tensor) -> None:
    """Send to the next rank and receive from the previous one at the same time: the ring of sendrecv_perf."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    send = dist.P2POp(dist.isend, source, (rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, target, (rank - 1) % ranks)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def timed_s(call: Callable[[], Any], *devices: torch.device | str, calls: int = 1) -> float:
    """Return the seconds of this many calls, until they are complete on the devices."""
    on_cuda = [device for device in map(torch.device, devices) if device.type == "cuda"]
    for device in on_cuda:
        torch.cuda.synchronize(device)
    began_s = time.perf_counter()
    for _ in range(calls):
        call()
    for device in on_cuda:
        torch.cuda.synchronize(device)
    return time.perf_counter() - began_s
