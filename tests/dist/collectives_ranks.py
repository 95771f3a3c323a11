"""On every rank: a few steps under a strategy while every c10d call is recorded below dtk."""

import json
import math
from collections import defaultdict
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dtk.config.schema import AdamWConfig, GPTConfig, PrecisionConfig
from dtk.models.build import build_model
from dtk.models.initialize import initialize
from dtk.parallel.context import Context
from dtk.parallel.regions import Region, observe
from dtk.sharding.registry import build_strategy
from dtk.train.optimizer import clip_factor, parameter_groups, recipe
from tests.dist.ranks import placed

MODEL = GPTConfig(name="probe", vocab_size=250, context_length=32, layers=4, heads=4, width=64)


class WireTap(TorchDispatchMode):
    """Counts collectives where torch dispatches them: below strategies, regions and hooks."""

    NAMES = {
        "_allgather_base_": ("all_gather", 0),
        "_reduce_scatter_base_": ("reduce_scatter", 1),
        "allreduce_": ("all_reduce", 0),
        "broadcast_": ("broadcast", 0),
        "send": ("send", 0),
        "recv_": ("recv", 0),
        "alltoall_base_": ("all_to_all", 1),
    }

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        namespace, name = str(function).split(".")[:2]
        if namespace == "c10d":
            op, position = self.NAMES[name]
            buffer = args[position]
            tensors = buffer if isinstance(buffer, (list, tuple)) else [buffer]
            self.calls.append((op, sum(t.nbytes for t in tensors)))
        return function(*args, **(kwargs or {}))


def flight_entries() -> list[dict[str, Any]]:
    """What torch's flight recorder holds: it also sees calls that other threads issue."""
    return json.loads(torch._C._distributed_c10d._dump_fr_trace_json()).get("entries", [])


class Listener:
    """Collects communication regions, as the recorder does."""

    def __init__(self) -> None:
        self.regions: list[tuple[str, str, int]] = []

    def enter(self, region: Region) -> None:
        if region.op is not None:
            self.regions.append((region.op, region.group, region.size_bytes))

    def exit(self, region: Region) -> None:
        pass


def summed(rows) -> dict[Any, tuple[int, int]]:
    totals: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for *key, size in rows:
        total = totals[tuple(key)]
        total[0] += 1
        total[1] += size
    return {key: tuple(total) for key, total in totals.items()}


def record(context: Context, strategy_config, accumulation: int, precision=None, clip=False, marked=True):
    """Returns (declared, on the wire, in regions, tensors held) of the third step."""
    listener = Listener()
    observe([listener] if marked else [])
    precision = precision or PrecisionConfig()
    with torch.device("meta"):
        model = build_model(MODEL, [])
    context = placed(context, strategy_config)
    strategy = build_strategy(strategy_config, context, precision)

    def fill(module):
        for name, parameter in module.named_parameters():
            initialize(parameter, name, module.initial(name), 0)

    wrapped = strategy.wrap(model, fill)
    optimizer = strategy.build_optimizer(parameter_groups(model, 0.1), recipe(AdamWConfig(), model.parameters(), []))
    tokens = torch.arange(64).reshape(2, 32) + context.rank
    for _ in range(3):
        tap = WireTap()
        seen = {entry["record_id"] for entry in flight_entries()}
        listener.regions.clear()
        with tap:
            for i in range(accumulation):
                with strategy.accumulate(wrapped, i == accumulation - 1), strategy.autocast():
                    wrapped(tokens).float().square().mean().backward()
            if clip:
                norm = strategy.gradient_norm(model.parameters())
                strategy.scale_gradients(model.parameters(), clip_factor(norm, 1.0))
            grads = sum(local_bytes(p.grad) for p in model.parameters() if p.grad is not None)
            optimizer.step()
            optimizer.zero_grad()
    if getattr(strategy_config, "communication_hook", "none") == "powersgd":
        # Its later reductions are chained to the first and leave from another thread.
        new = [entry for entry in flight_entries() if entry["record_id"] not in seen]
        tap.calls = [("all_reduce", 4 * sum(map(math.prod, entry["input_sizes"]))) for entry in new]
    inner = getattr(optimizer, "optim", optimizer)
    kept = {
        "parameters": sum(local_bytes(p) for p in model.parameters()),
        "gradients": grads,
        "optimizer": sum(local_bytes(v) for s in inner.state.values() for v in s.values() if v.dim()),
        "all_parameters": sum(p.numel() * 4 for p in model.parameters()),
    }
    observe([])
    declared = strategy.collectives(model, accumulation, clip)
    by_group: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for c in declared:
        by_group[c.op, c.group][0] += c.count
        by_group[c.op, c.group][1] += c.size_bytes
    by_group_done = {key: tuple(value) for key, value in by_group.items()}
    return by_group_done, summed(tap.calls), summed(listener.regions), kept


def local_bytes(tensor: torch.Tensor) -> int:
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.numel() * part.element_size()


def record_all(context: Context, cases: dict[str, dict]) -> dict[str, Any]:
    return {name: record(context, **case) for name, case in cases.items()}
