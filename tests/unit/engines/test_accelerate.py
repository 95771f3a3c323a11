"""`engine=accelerate` in one process: which class runs a section, its backward and optimizer, what it refuses."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import PrecisionConfig
from dtk.engines.accelerate import Replicas, Shards
from dtk.errors import DtkError
from dtk.sharding.registry import build_strategy
from dtk.strategies.ddp import DDP, DDPConfig
from dtk.strategies.fsdp import FSDP, FSDPConfig
from tests.unit.rank_threads import context, on_ranks

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def no_state() -> Iterator[None]:
    """Accelerate keeps what it found of the process for its whole life."""
    yield
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


def built(section: DDPConfig | FSDPConfig, rank: int, mesh: Mesh, precision: PrecisionConfig) -> Any:
    return build_strategy(section, context(rank, mesh), precision, engine="accelerate")


def fill(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.constant_(parameter, 0.5)


@pytest.mark.parametrize(
    ("section", "kinds"), [(DDPConfig(), (Replicas, DDP)), (FSDPConfig(), (Shards, FSDP))], ids=["ddp", "fsdp"]
)
def test_a_native_strategy_is_run_by_the_library(section: DDPConfig | FSDPConfig, kinds: tuple[type, type]) -> None:
    (result,) = on_ranks(1, lambda rank: type(built(section, rank, section.mesh(1), PrecisionConfig())))
    assert result.__bases__ == kinds


@pytest.mark.parametrize(("compute", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_model_optimizer_and_backward_are_the_librarys(compute: str, dtype: torch.dtype) -> None:
    def work(rank: int) -> None:
        precision = PrecisionConfig(name="probe", compute_dtype=compute)  # type: ignore[arg-type]
        strategy = built(DDPConfig(), rank, Mesh(), precision)
        seen: list[torch.dtype] = []
        with torch.device("meta"):
            model = nn.Linear(3, 1)
        wrapped = strategy.wrap(model, fill)
        model.register_forward_hook(lambda module, inputs, output: seen.append(module.weight.dtype))
        optimizer = strategy.build_optimizer([{"params": [*model.parameters()]}], partial(torch.optim.SGD, lr=0.1))
        assert isinstance(optimizer, accelerate.optimizer.AcceleratedOptimizer)
        strategy.backward(wrapped(torch.ones(2, 3)).sum())
        optimizer.step()
        assert model.weight.flatten().tolist() == pytest.approx([0.5 - 0.1 * 2] * 3)
        assert strategy.accelerator.mixed_precision == ("bf16" if dtype == torch.bfloat16 else "no")  # type: ignore[attr-defined]

    on_ranks(1, work)


def test_several_ranks_that_the_library_does_not_see_are_refused() -> None:
    """Accelerate asks torch for its ranks; where they are unknown to it, it would train copies that drift apart."""

    def work(rank: int) -> None:
        built(DDPConfig(), rank, Mesh(dp_replicate=2), PrecisionConfig()).wrap(nn.Linear(2, 2), fill)

    with pytest.raises(DtkError, match=r"made Linear .* not replicas"):
        on_ranks(1, work)
