"""`ddp`: replicas whose gradients are all-reduced in buckets during backward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal, cast

from diagnostics.contract.mesh import DATA, MODEL, ORDER, Mesh
from dtk.errors import DtkError
from dtk.parallel.compression import BLOCK, BLOCK_BYTES, factor_rank, int8_blocks, rounding_bytes, topk_bytes
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.base import Strategy, materialise
from dtk.sharding.declared import Collective, ModelShapes, Shape
from dtk.sharding.traits import Reduction, StrategyConfig, Traits
from dtk.strategies.fsdp import FSDPConfig

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.nn.parallel import DistributedDataParallel

    from dtk.parallel.context import Context
    from dtk.parallel.ddp_hooks import Hook
    from dtk.sharding.base import Fill

LIBRARY_BUCKET_CAP_MB = 25.0
"""DDP's default. DDP makes the first bucket small (1 MiB) only if this is not set explicitly."""
FIRST_BUCKET_BYTES = 2**20  # That small first bucket: `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`.
READ_BY = {"topk_ratio": ("topk",), "powersgd_rank": ("powersgd",), "error_feedback": ("int8", "topk", "powersgd")}
"""Key -> the values of `communication_hook` that read it."""
TOPK_BEHIND_AVERAGES = (
    "strategy.communication_hook=topk trains worse where the optimizer averages gradients over steps (loss +15% with "
    "adamw, +6% with momentum 0.9 in strategies.md); use int8, or optimizer=sgd optimizer.momentum=0"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DDPConfig(StrategyConfig):
    """DistributedDataParallel (Li et al. 2020): replicas, gradients all-reduced in buckets during backward."""

    traits = Traits(
        replicated_over="dp",
        gradients_in="buckets",
        collectives=("all_reduce",),
        dimensions=(*DATA, *MODEL),
        keeps_gradients=True,
        in_backward_conflict="gradients are reduced only after they are complete",
        simplicity=2,
    )
    collectives = "all_reduce of each gradient bucket"
    sent = "2 P (N-1)/N"
    use_when = "the whole training state fits on every device"
    limits = {"bucket_cap_mb": (math.ulp(0.0), math.inf), "powersgd_rank": (1, math.inf)}
    limits |= {"topk_ratio": (math.ulp(0.0), 1)}
    plain = (*DATA, "cp", "pp")  # In these dimensions a model, or a stage of it, has plain parameters.

    name: Literal["ddp"] = "ddp"
    bucket_cap_mb: float = 25.0
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    find_unused_parameters: bool = False
    communication_hook: Literal["none", "fp16", "bf16", "int8", "topk", "powersgd"] = "none"
    powersgd_rank: int = 4
    topk_ratio: float = 0.01
    error_feedback: bool = True

    @property
    def remembers_error(self) -> bool:
        """Whether a rank keeps an error for each parameter from step to step."""
        return self.error_feedback and self.communication_hook in READ_BY["error_feedback"]

    def warning(self, optimizer: Any) -> str:
        """Return a line about keys that another hook than the chosen one reads, or about topk behind averages."""
        plain, kind = type(self)(name=self.name), self.communication_hook
        unread = {key: getattr(self, key) for key, hooks in READ_BY.items() if kind not in hooks}
        typed = [f"strategy.{key}={str(x).lower()}" for key, x in unread.items() if x != getattr(plain, key)]
        have = "has" if len(typed) == 1 else "have"
        if typed:
            return f"{' '.join(typed)} {have} no effect with strategy.communication_hook={kind}"
        averages = optimizer.name == "adamw" or getattr(optimizer, "momentum", 0)
        return TOPK_BEHIND_AVERAGES if kind == "topk" and averages else ""

    def check(self) -> None:
        """Reject a static graph combined with a search for unused parameters."""
        if self.static_graph and self.find_unused_parameters:
            what = "strategy.static_graph=true and strategy.find_unused_parameters=true are mutually exclusive"
            raise DtkError(what, "a static graph needs no search", "drop one of them")

    def on(self, mesh: Mesh) -> StrategyConfig:
        """Return the fully_shard variant if the model is sharded: DistributedDataParallel does not accept DTensors."""
        cut = [f"parallel.{name}" for name in (*ORDER, "ep") if name not in self.plain and mesh.size(name) > 1]
        if not cut:
            return self
        tier = {field.name: getattr(self, field.name) for field in fields(StrategyConfig) if field.name != "name"}
        for field in fields(self):
            if field.name not in tier and (value := getattr(self, field.name)) != field.default:
                what = f"strategy.{field.name}={str(value).lower()} is incompatible with {' and '.join(cut)}"
                why = "the gradients of a model that is cut are averaged unit by unit, not in DDP's buckets"
                raise DtkError(what, why, f"drop it, or use {' '.join(f'{key}=1' for key in cut)}")
        return replace(self.in_units(), **tier)  # type: ignore[arg-type]

    def in_units(self) -> StrategyConfig:
        """Return the section that keeps states replicated and communicates them unit by unit."""
        return ReplicatedUnitsConfig()

    def reductions(self, shapes: Sequence[Shape], ranks: int) -> list[Reduction]:
        """Return DDP's buckets, then the bitmap of used parameters (one int32 each) if it searches for unused ones."""
        ready = list(reversed(shapes))
        buckets = gradient_buckets(self.bucket_cap_mb, shapes)
        reduced = [bucket_reduction(self, bucket, [ready[i] for i in bucket], ranks) for bucket in buckets]
        searches = self.find_unused_parameters and not self.static_graph
        return [*reduced, *([Reduction((), (("all_reduce", 4 * len(shapes)),))] if searches else [])]

    def declare(
        self, shapes: ModelShapes, mesh: Mesh, precision: PrecisionConfig, accumulation_steps: int
    ) -> list[Collective]:
        """Declare the reductions of the gradient buckets, which do not depend on accumulation."""
        return ddp_collectives(self, shapes.parameters, mesh.dp_size) if mesh.dp_size > 1 or mesh.pp == 1 else []


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicatedUnitsConfig(FSDPConfig):
    """`ddp` of a sharded model: fully_shard over one rank averages the gradients of each unit over the replicas."""

    traits = replace(DDPConfig.traits, gradients_in="units", always_grouped=("dp_shard",), keeps_gradients=False)
    engine = "fsdp"
    autocasts = True

    name: Literal["ddp"] = "ddp"  # type: ignore[assignment]
    reshard_after_forward: bool = False


class DDP(Strategy):
    """DistributedDataParallel (Li et al. 2020, PyTorch Distributed, VLDB)."""

    def __init__(self, config: Any, context: Context, precision: PrecisionConfig) -> None:
        super().__init__(config, context, precision)
        self.ran_backward = False
        """Whether the first backward has run."""
        self.hooks: list[Hook] = []
        """One hook for each wrapped module: the model, or the stages of a pipeline."""

    def wrap(self, model: nn.Module, fill: Fill) -> nn.Module:
        """Materialise a full replica on this rank and wrap it."""
        from torch.nn.parallel import DistributedDataParallel

        materialise(model, self.context.device, fill)
        config, mesh = self.config, self.mesh
        if mesh.dp_size == 1 and mesh.pp > 1:
            return model
        group = self.device_mesh.get_group("dp_replicate") if mesh.pp > 1 else None
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.context.device] if self.context.device.type == "cuda" else None,
            process_group=group,
            # Every rank computes the same initial values from the seed, so no broadcast is needed.
            init_sync=False,
            bucket_cap_mb=None if config.bucket_cap_mb == LIBRARY_BUCKET_CAP_MB else config.bucket_cap_mb,
            gradient_as_bucket_view=config.gradient_as_bucket_view,
            static_graph=config.static_graph,
            find_unused_parameters=config.find_unused_parameters,
        )
        return self.hooked(model, wrapped, group)

    def hooked(self, model: nn.Module, wrapped: Any, group: ProcessGroup | None) -> nn.Module:
        """Return the wrapped model, with the hook that marks or compresses its buckets if one is needed."""
        from dtk.parallel.regions import observed

        if self.config.communication_hook != "none" or observed():  # Otherwise DDP's own C++ path stays in use.
            self.hooks.append(self._hook(model, group))
            wrapped.register_comm_hook(None, self.hooks[-1].run)
        return cast("nn.Module", wrapped)

    def _hook(self, model: nn.Module, group: ProcessGroup | None) -> Hook:
        import torch

        from dtk.parallel.ddp_hooks import LARGEST_INDEX, Hook, Int8, PowerSGD, SixteenBit, TopK

        config, kind = self.config, self.config.communication_hook
        if kind == "none":
            return Hook(group)
        if kind in ("fp16", "bf16"):
            return SixteenBit(group, torch.float16 if kind == "fp16" else torch.bfloat16)
        remembered = [p for p in model.parameters() if p.requires_grad], config.error_feedback
        if kind == "powersgd":
            return PowerSGD(group, *remembered, config.powersgd_rank)
        if kind == "int8":
            return Int8(group, *remembered)
        if max(p.numel() for p in remembered[0]) >= LARGEST_INDEX:
            what = "strategy.communication_hook=topk: a parameter has more elements than 4 bytes can number"
            raise DtkError(what, fix="use another hook")
        hook = TopK(group, *remembered)
        hook.ratio = config.topk_ratio
        return hook

    def rank_state(self) -> dict[str, Tensor]:
        """Return the errors and factors of the hooks, one hook for each wrapped module."""
        return {f"hook_{i}.{name}": v for i, hook in enumerate(self.hooks) for name, v in hook.state().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the state of each hook."""
        for i, hook in enumerate(self.hooks):
            hook.restore({name.partition(".")[2]: v for name, v in state.items() if name.startswith(f"hook_{i}.")})

    def figures(self) -> dict[str, float]:
        """Return the sums of the hooks' counters."""
        return {**super().figures(), **sum((Counter(hook.figures()) for hook in self.hooks), Counter())}

    def accumulate(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Return `no_sync` for all micro-batches except the last.

        With static_graph DDP records the graph in the first backward, which must synchronize: one more reduction.
        """
        first, self.ran_backward = not self.ran_backward, True
        if not hasattr(wrapped, "no_sync") or last or (first and self.config.static_graph):
            return nullcontext()
        return cast("DistributedDataParallel", wrapped).no_sync()

    @contextmanager
    def begin_backward(self, wrapped: nn.Module, last: bool, split: bool = False) -> Iterator[None]:
        """Make the reducer expect every gradient of the last backward, although its forward ran under `no_sync`."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        reducer: Any = wrapped.reducer if last and isinstance(wrapped, DistributedDataParallel) else None
        if reducer is not None and not split:
            reducer.prepare_for_backward([])
        with self.accumulate(wrapped, last and (reducer is None or not split)):
            yield
        if reducer is not None and split:  # Adding zeros to the accumulated gradients triggers the reducer's hooks.
            reducer.prepare_for_backward([])
            for p in reversed([p for p in wrapped.parameters() if p.requires_grad]):
                torch.autograd.backward(p, torch.zeros((), dtype=p.dtype, device=p.device).expand_as(p))

    @property
    def reduce_dtype(self) -> str | None:
        """The dtype of the hook that compresses the buckets."""
        kind = self.config.communication_hook
        if super().reduce_dtype is None or kind == "none":
            return super().reduce_dtype
        return {
            "fp16": "float16",
            "bf16": "bfloat16",
            "int8": f"int8 by blocks of {BLOCK}",
            "topk": f"float32, the largest {self.config.topk_ratio:.3%} of each parameter",
            "powersgd": f"float32 by powersgd of rank {self.config.powersgd_rank}",
        }[kind]


def ddp_collectives(config: DDPConfig, shapes: Sequence[Shape], ranks: int) -> list[Collective]:
    """Return the reductions of the gradient buckets, independent of accumulation. Arguments: see `reductions`."""
    sizes: dict[tuple[str, bool], list[int]] = {}  # Reductions of gradients, and of the bitmap, which has no members.
    for reduction in config.reductions(shapes, ranks):
        for op, size in reduction.calls:
            sizes.setdefault((op, bool(reduction.members)), []).append(size)
    return [Collective(op, "dp", len(of), sum(of)) for (op, _), of in sizes.items()]


def bucket_reduction(config: DDPConfig, members: Sequence[int], shapes: Sequence[Shape], ranks: int) -> Reduction:
    """Return the reduction of a bucket with parameters of these shapes: its calls in order, and the copies it holds."""
    kind, elements = config.communication_hook, [prod(shape) for shape in shapes]
    calls, beside = [("all_reduce", (4 if kind == "none" else 2) * sum(elements))], 0
    if kind in ("fp16", "bf16"):
        beside = 2 * sum(elements)
    elif kind == "int8":
        blocks = int8_blocks(elements, ranks)
        calls = [("all_to_all", BLOCK_BYTES * blocks), ("all_gather", BLOCK_BYTES * blocks)]
        beside = rounding_bytes(blocks // ranks, ranks, gathers=False)
    elif kind == "topk":
        gathered = topk_bytes(elements, config.topk_ratio, ranks)
        calls = [("all_gather", gathered)]
        # TopK holds a parameter's absolute values, or all that is gathered, and the rank's values and indices, 8 bytes.
        beside = max(4 * max(elements), gathered + 36 * gathered // (8 * ranks))
    elif kind == "powersgd":
        # Tensors too small to compress, then P and Q (Vogels et al. 2019, alg. 1); even an empty one is reduced.
        matrices = [(shape[0], prod(shape[1:])) for shape in shapes if len(shape) > 1]
        factors = [(n, m, r) for n, m in matrices if (r := factor_rank(n, m, config.powersgd_rank))]
        whole = sum(elements) - sum(n * m for n, m, _ in factors)
        sent = whole, sum(n * r for n, _, r in factors), sum(m * r for _, m, r in factors)
        calls = [("all_reduce", 4 * count) for count in sent]
        # PowerSGD holds the errors, the gradients before compression and the new errors.
        beside = 4 * (sum(sent) + (3 * sum(elements) if config.error_feedback else 0))
    return Reduction(tuple(members), tuple(calls), beside)


def gradient_buckets(bucket_cap_mb: float, shapes: Sequence[Shape]) -> list[list[int]]:
    """Return the parameter indices of each bucket, in the order in which DDP fills them (Li et al. 2020, 3.2.2).

    That order is assumed to be the reverse of the definition order, which holds if the forward uses parameters in the
    order of their definition. The parameter that reaches the limit closes a bucket.
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


CONFIG, STRATEGY = DDPConfig, DDP
