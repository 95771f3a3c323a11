"""A small model, and one step of a strategy on ranks that are threads, with the collectives that it marks."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import GPTConfig, PrecisionConfig
from dtk.models.build import build_model
from dtk.models.initialize import initialize_model
from dtk.parallel.context import Context
from dtk.parallel.regions import Region, observe
from dtk.sharding.base import Strategy
from dtk.sharding.registry import build_strategy
from tests.unit.rank_threads import context

MODEL = GPTConfig(name="probe", vocab_size=14, context_length=8, layers=2, heads=2, width=8)


class Calls:
    """Counts (operation, group) and sums bytes of the communication regions of all threads."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.sizes: Counter[tuple[str, str]] = Counter()
        self.lock = threading.Lock()

    def enter(self, region: Region) -> None:
        if region.op is not None:
            with self.lock:
                self.counts[region.op, region.group] += 1
                self.sizes[region.op, region.group] += region.size_bytes

    def exit(self, region: Region) -> None:
        pass


@pytest.fixture
def calls() -> Iterator[Calls]:
    counting = Calls()
    observe([counting])
    yield counting
    observe([])


Wrapped = tuple[Strategy, nn.Module, nn.Module]


def wrapped(section: Any, rank: int, mesh: Mesh, precision: PrecisionConfig | None = None) -> Wrapped:
    """Return (strategy, model, what forward is called on) of a rank, inside `on_ranks`."""
    place: Context = context(rank, mesh)
    strategy = build_strategy(section, place, precision or PrecisionConfig())
    with torch.device("meta"):
        model = build_model(MODEL, [])
    return strategy, model, strategy.wrap(model, lambda module: initialize_model(module, 3))


def backward(parts: Wrapped, batches: list[torch.Tensor]) -> None:
    """Forward and backward of every micro-batch; gradients are communicated in the last one."""
    strategy, _, module = parts
    for i, tokens in enumerate(batches):
        with strategy.accumulate(module, last=i == len(batches) - 1), strategy.autocast():
            (module(tokens).float().square().mean() / len(batches)).backward()


def tokens(rank: int) -> torch.Tensor:
    return (torch.arange(16).view(2, 8) * (rank + 1)) % MODEL.vocab_size


def reference(batches: list[torch.Tensor]) -> nn.Module:
    """The whole model after the mean of these losses."""
    model = build_model(MODEL, [])
    initialize_model(model, 3)
    for batch in batches:
        (model(batch).square().mean() / len(batches)).backward()
    return model
