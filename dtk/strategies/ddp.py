"""`ddp`: replicas whose gradients are all-reduced in buckets while backward still runs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dtk.parallel.regions import communication, observed
from dtk.strategies.base import Fill, Strategy, materialise, parameter_bytes, trained_shapes
from dtk.strategies.declared import LIBRARY_BUCKET_CAP_MB, MIN_COMPRESSION_RATE, Collective, ddp_collectives

Hook = Callable[[Any, GradBucket], Future[torch.Tensor]]


class DDP(Strategy):
    """DistributedDataParallel (Li et al. 2020, PyTorch Distributed, VLDB)."""

    ran_backward = False
    """Whether the first micro-batch is over."""

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Materialise a full replica on this rank and wrap it."""
        materialise(model, self.context.device, fill)
        config = self.config
        cap = None if config.bucket_cap_mb == LIBRARY_BUCKET_CAP_MB else config.bucket_cap_mb
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.context.device] if self.context.device.type == "cuda" else None,
            # Every rank computes the same initial values from the seed: nothing to broadcast.
            init_sync=False,
            bucket_cap_mb=cap,
            gradient_as_bucket_view=config.gradient_as_bucket_view,
            static_graph=config.static_graph,
            find_unused_parameters=config.find_unused_parameters,
        )
        self._register_hook(wrapped)
        return wrapped

    def _register_hook(self, wrapped: DistributedDataParallel) -> None:
        """Mark and compress the buckets; with neither wanted DDP's own C++ path stays untouched."""
        kind = self.config.communication_hook
        if kind == "none" and not observed():
            return
        state: Any = None
        hook: Hook = allreduce_hook
        size = 1.0
        if kind in ("fp16", "bf16"):
            hook, size = _compress(torch.float16 if kind == "fp16" else torch.bfloat16), 0.5
        elif kind == "powersgd":
            state = powersgd.PowerSGDState(
                None,
                matrix_approximation_rank=self.config.powersgd_rank,
                start_powerSGD_iter=2,
                min_compression_rate=MIN_COMPRESSION_RATE,
            )
            hook = powersgd.powerSGD_hook
            if self.context.backend == "gloo":
                hook = _one_at_a_time(hook)
            parameters = [p for p in wrapped.module.parameters() if p.requires_grad]
            sent = ddp_collectives(self.config, trained_shapes(parameters))[0]
            size = sent.size_bytes / parameter_bytes(parameters)
        wrapped.register_comm_hook(state, _marked(hook, size))

    def accumulate(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        """`no_sync` in all micro-batches but the last.

        With static_graph DDP learns the graph in the very first backward, which must synchronise:
        one more reduction, once.
        """
        assert isinstance(wrapped, DistributedDataParallel)
        first, self.ran_backward = not self.ran_backward, True
        if last or (first and self.config.static_graph):
            return nullcontext()
        return wrapped.no_sync()

    @property
    def reduce_dtype(self) -> str | None:
        """That of the hook which compresses the buckets."""
        kind = self.config.communication_hook
        if super().reduce_dtype is None or kind == "none":
            return super().reduce_dtype
        compressed = {"fp16": "float16", "bf16": "bfloat16"}
        return compressed.get(kind, f"float32 by {kind} of rank {self.config.powersgd_rank}")

    @property
    def replicas(self) -> list[list[int]]:
        """All ranks."""
        return [list(range(self.context.world_size))]

    def collectives(self, model: nn.Module, accumulation_steps: int) -> list[Collective]:
        """One all_reduce per gradient bucket, whatever the accumulation."""
        return ddp_collectives(self.config, trained_shapes(model.parameters()))


def _marked(hook: Hook, size: float) -> Hook:
    """The hook inside a communication region; `size` is its share of the bucket's bytes on the wire."""

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
        small = buffer.to(dtype).div_(dist.get_world_size())
        work = dist.all_reduce(small, async_op=True)
        assert work is not None
        return work.get_future().then(lambda _: buffer.copy_(small))  # type: ignore[no-any-return]

    return run
