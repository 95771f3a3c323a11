"""What each strategy issues per optimizer step, from the shapes of the parameters alone.

Pure functions: the strategies declare with them, and a plan asks them for a number of ranks that is not there.
They know no tensor, no process group and no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dtk.config.schema import DDPConfig, FSDPConfig, PrecisionConfig

Shape = tuple[int, ...]
"""Of one parameter; dim 0 is the one that is sharded."""

LIBRARY_BUCKET_CAP_MB = 25.0
"""DDP's own default. Only when it is left unset does DDP make the first bucket small (1 MiB)."""
FIRST_BUCKET_BYTES = 2**20
"""That small first bucket: `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`."""
MIN_COMPRESSION_RATE = 2
"""powerSGD_hook's default: matrices that would not shrink by this factor are sent whole."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Collective:
    """What a strategy issues per optimizer step, from the second step on.

    `size_bytes` is the sum over the `count` calls of the full (largest) buffer on one rank.
    """

    op: str
    group: str
    count: int
    size_bytes: int


CLIP_SHARDED = (Collective("all_reduce", "dp_shard", 1, 4),)
"""What clipping by the global norm adds where gradients are sharded: the sum of squares, a float32."""


def ddp_collectives(config: DDPConfig, shapes: Sequence[Shape]) -> list[Collective]:
    """One all_reduce per gradient bucket, whatever the accumulation.

    Args:
        config: the `strategy` section.
        shapes: of the parameters that are trained, in the order in which the model defines them.
    """
    if config.communication_hook == "powersgd":
        return [_powersgd(config, shapes)]
    size = 4 * sum(map(prod, shapes))
    if config.communication_hook != "none":
        size //= 2
    declared = [Collective("all_reduce", "dp", len(gradient_buckets(config.bucket_cap_mb, shapes)), size)]
    if config.find_unused_parameters and not config.static_graph:
        # The bitmap of used parameters, one int32 each.
        declared.append(Collective("all_reduce", "dp", 1, 4 * len(shapes)))
    return declared


def zero1_collectives(config: DDPConfig, shapes: Sequence[Shape], world_size: int) -> list[Collective]:
    """DDP's all_reduces, then one broadcast per rank of the parameters that it updated.

    A rank that is left without parameters sends one element that means nothing.
    """
    size = 4 * (sum(map(prod, shapes)) + max(0, world_size - len(shapes)))
    return [*ddp_collectives(config, shapes), Collective("broadcast", "dp", world_size, size)]


def fsdp_collectives(
    config: FSDPConfig,
    precision: PrecisionConfig,
    units: Sequence[Sequence[Shape]],
    root: Sequence[Shape],
    shards: int,
    accumulation_steps: int,
) -> list[Collective]:
    """Gathers in every micro-batch (twice for units that reshard), one reduce_scatter per unit and step.

    The root unit (embeddings, final norm, head) is never resharded after forward: FSDP2 keeps it,
    as backward would gather it again at once. A rank that holds whole parameters gathers and scatters nothing.

    Args:
        config: the `strategy` section.
        precision: the `precision` section.
        units: parameters of each unit of blocks.
        root: parameters of the root unit.
        shards: ranks that share one copy of the parameters.
        accumulation_steps: micro-batches per optimizer step.
    """
    if shards == 1:
        return []
    compute = ITEM_BYTES[precision.compute_dtype]
    gathers = 2 if config.reshard_after_forward else 1
    blocks = sum(padded_elements(unit, shards) for unit in units)
    rest = padded_elements(root, shards)
    gathered = accumulation_steps * (gathers * blocks + rest) * compute
    return [
        Collective("all_gather", "dp_shard", accumulation_steps * (gathers * len(units) + 1), gathered),
        Collective("reduce_scatter", "dp_shard", len(units) + 1, (blocks + rest) * reduced_item_bytes(precision)),
    ]


def hsdp_collectives(
    config: FSDPConfig,
    precision: PrecisionConfig,
    units: Sequence[Sequence[Shape]],
    root: Sequence[Shape],
    shards: int,
    accumulation_steps: int,
) -> list[Collective]:
    """As fsdp over dp_shard, and one all_reduce of the shard per unit over dp_replicate."""
    inside = fsdp_collectives(config, precision, units, root, shards, accumulation_steps)
    elements = padded_elements([shape for unit in (*units, root) for shape in unit], shards) // shards
    size = elements * reduced_item_bytes(precision)
    return [*inside, Collective("all_reduce", "dp_replicate", len(units) + 1, size)]


def reduced_item_bytes(precision: PrecisionConfig) -> int:
    """Bytes of one element of a gradient as FSDP2 reduces it."""
    return ITEM_BYTES[precision.reduce_dtype] if ITEM_BYTES[precision.compute_dtype] != 4 else 4


def shard_mesh(strategy: object, world_size: int) -> tuple[int, int]:
    """Ranks in (dp_replicate, dp_shard) of a strategy that shards parameters; -1 = what the other one leaves."""
    replicate, shard = getattr(strategy, "dp_replicate", 1), getattr(strategy, "dp_shard", -1)
    replicate = world_size // shard if replicate == -1 else replicate
    return replicate, world_size // replicate


def padded_elements(shapes: Sequence[Shape], shards: int) -> int:
    """Elements with dim 0 padded to a multiple of the ranks that share it, as FSDP2 gathers and reduces them."""
    return sum(-(-shape[0] // shards) * shards * prod(shape[1:]) for shape in shapes)


def gradient_buckets(bucket_cap_mb: float, shapes: Sequence[Shape]) -> list[list[int]]:
    """Indices per bucket, counted in the order in which DDP fills them (Li et al. 2020, section 3.2.2).

    That order is taken to be the reverse of the definition order, the case in which the model's forward uses its
    parameters in the order in which it defines them. A bucket is closed by the parameter that reaches the limit.

    Args:
        bucket_cap_mb: largest bucket in MiB.
        shapes: of the parameters in the order of definition.
    """
    cap = int(bucket_cap_mb * 2**20)
    limit = FIRST_BUCKET_BYTES if bucket_cap_mb == LIBRARY_BUCKET_CAP_MB else cap
    buckets: list[list[int]] = []
    bucket: list[int] = []
    size = 0
    for i, shape in enumerate(reversed(shapes)):
        bucket.append(i)
        size += 4 * prod(shape)
        if size >= limit:
            buckets.append(bucket)
            bucket, size, limit = [], 0, cap
    return [*buckets, bucket] if bucket else buckets


def _powersgd(config: DDPConfig, shapes: Sequence[Shape]) -> Collective:
    """Per bucket: the tensors too small to compress, then the factors P and Q (Vogels et al. 2019, alg. 1)."""
    rank, count, numbers = config.powersgd_rank, 0, 0
    ready = list(reversed(shapes))
    for bucket in gradient_buckets(config.bucket_cap_mb, shapes):
        tensors = [ready[i] for i in bucket]
        matrices = [(shape[0], prod(shape[1:])) for shape in tensors if len(shape) > 1]
        factors = [(n, m, min(n, m, rank)) for n, m in matrices if (n + m) * rank * MIN_COMPRESSION_RATE < n * m]
        whole = sum(map(prod, tensors)) - sum(n * m for n, m, _ in factors)
        # The library reduces all three even when one is empty.
        numbers += whole + sum((n + m) * r for n, m, r in factors)
        count += 3
    return Collective("all_reduce", "dp", count, 4 * numbers)
