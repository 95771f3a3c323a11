"""Keys of the `strategy` section: one dataclass per family of strategies."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleConfig:
    """One process, one device: the reference that the others are compared with."""

    name: Literal["single"] = "single"


@dataclass(frozen=True, kw_only=True, slots=True)
class DPConfig:
    """nn.DataParallel: one process, threads over all CUDA devices. Kept as the historical baseline."""

    name: Literal["dp"] = "dp"


@dataclass(frozen=True, kw_only=True, slots=True)
class DDPConfig:
    """DistributedDataParallel (Li et al. 2020): replicas, gradients all-reduced in buckets."""

    name: Literal["ddp"] = "ddp"
    bucket_cap_mb: float = 25.0
    """Largest gradient bucket in MiB."""
    gradient_as_bucket_view: bool = True
    """Gradients live inside the buckets: one copy less."""
    static_graph: bool = False
    """Promise that every step uses the same parameters."""
    find_unused_parameters: bool = False
    """Search the graph each step for parameters without a gradient."""
    communication_hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Compression of the gradients on the wire."""
    powersgd_rank: int = 4
    """Rank of PowerSGD's approximation (Vogels et al. 2019)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Zero1Config(DDPConfig):
    """DDP with the optimizer state sharded over ranks (ZeRO stage 1, Rajbhandari et al. 2020)."""

    name: Literal["zero1"] = "zero1"  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True, slots=True)
class FSDPConfig:
    """`fully_shard` per block (PyTorch FSDP2): parameters, gradients and optimizer state sharded."""

    name: Literal["fsdp", "zero3", "zero2"] = "fsdp"
    reshard_after_forward: bool = True
    """Free gathered parameters after forward and gather them again in backward (ZeRO-3); false: ZeRO-2."""
    blocks_per_unit: int = 1
    """Blocks gathered together; 0 = the whole model as one unit."""
    prefetch_depth: int = 1
    """Units gathered ahead of the one in use."""
    cpu_offload: bool = False
    """Parameters, gradients and optimizer state live in host memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HSDPConfig(FSDPConfig):
    """Hybrid sharding: shard inside a group of dp_shard ranks, replicate over dp_replicate groups."""

    name: Literal["hsdp"] = "hsdp"  # type: ignore[assignment]
    dp_replicate: int = 2
    dp_shard: int = -1
    """-1 = all the ranks that dp_replicate leaves."""
