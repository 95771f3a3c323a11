"""Hooks of DistributedDataParallel that mark and compress the gradient buckets. Knows no strategy."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from dtk.parallel.regions import communication

Hook = Callable[[Any, GradBucket], Future[torch.Tensor]]


def bucket_hook(
    kind: str, share: float, backend: str, rank: int, min_compression_rate: float, group: dist.ProcessGroup | None
) -> tuple[Any, Hook]:
    """State and hook for `register_comm_hook`, inside a communication region.

    Args:
        kind: none, fp16, bf16 or powersgd.
        share: part of a bucket's bytes that is sent.
        backend: of the process group.
        rank: of PowerSGD's approximation.
        min_compression_rate: matrices that would not shrink by this factor PowerSGD sends whole.
        group: of the data-parallel ranks; None = all ranks.
    """
    if kind == "none":
        return group, _marked(allreduce_hook, share)
    if kind != "powersgd":
        return group, _marked(_compress(torch.float16 if kind == "fp16" else torch.bfloat16), share)
    state = powersgd.PowerSGDState(
        group,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=2,
        min_compression_rate=min_compression_rate,
    )
    hook: Hook = powersgd.powerSGD_hook
    return state, _marked(_one_at_a_time(hook) if backend == "gloo" else hook, share)


def _marked(hook: Hook, size: float) -> Hook:
    """Wrap the hook in a communication region; `size` is the fraction of the bucket's bytes sent over the wire."""

    def run(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
        with communication("all_reduce", int(bucket.buffer().nbytes * size), "dp"):
            return hook(state, bucket)

    return run


def _one_at_a_time(hook: Hook) -> Hook:
    """Wait for each bucket before the next.

    powerSGD_hook chains reductions in callbacks. Gloo runs the callbacks of several buckets on its
    own threads in any order, so that ranks would pair the reduction of one bucket with another's.
    """

    def run(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
        future = hook(state, bucket)
        future.wait()
        return future

    return run


def _compress(dtype: torch.dtype) -> Hook:
    """Average the bucket in a 16-bit type. The library's bfloat16 hook refuses all but NCCL; this serves both."""

    def run(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
        buffer = bucket.buffer()
        small = buffer.to(dtype).div_(dist.get_world_size(state))
        work = dist.all_reduce(small, group=state, async_op=True)
        assert work is not None
        return work.get_future().then(lambda _: buffer.copy_(small))  # type: ignore[no-any-return]

    return run
