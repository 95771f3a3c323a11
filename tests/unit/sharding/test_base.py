"""What all strategies share: the meshes that they refuse, gradients, shapes and initial values."""

import pytest
import torch
from torch import nn

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import PrecisionConfig
from dtk.errors import DtkError
from dtk.models.build import build_model
from dtk.sharding.base import local, materialise, model_shapes, owned_state
from dtk.sharding.registry import build_strategy
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.single import SingleConfig
from tests.unit.rank_threads import context, on_ranks
from tests.unit.strategies.conftest import MODEL, backward, reference, tokens, wrapped


def refused(section: object, mesh: Mesh) -> list[str]:
    def work(rank: int) -> str:
        with pytest.raises((DtkError, ValueError)) as caught:
            build_strategy(section, context(rank, mesh), PrecisionConfig())
        return str(caught.value)

    return on_ranks(mesh.world_size, work)


def test_a_mesh_that_a_strategy_does_not_implement_is_refused() -> None:
    assert "strategy=single does not implement the mesh dimension tp" in refused(SingleConfig(), Mesh(tp=2))[0]
    assert "does not implement the mesh dimension cp" in refused(SingleConfig(), Mesh(cp=2))[1]


def test_ranks_that_joined_otherwise_are_refused() -> None:
    assert "divides them differently" in refused(HSDPConfig(dp_replicate=2), Mesh(dp_shard=2))[0]


def test_a_single_rank_has_the_norm_of_its_gradients() -> None:
    expected = reference([tokens(0)])

    def work(rank: int) -> None:
        parts = wrapped(SingleConfig(), rank, Mesh())
        strategy, model, module = parts
        assert module is model and strategy.loss_factor == 1 and strategy.reduce_dtype is None
        assert strategy.collectives(model, 1, clips=True) == [] and strategy.replicas == {}
        backward(parts, [tokens(0)])
        norm = strategy.gradient_norm(model.parameters())
        assert torch.allclose(norm, torch.nn.utils.get_total_norm([p.grad for p in expected.parameters()]))  # type: ignore[misc]
        strategy.scale_gradients(model.parameters(), torch.tensor(2.0))
        assert torch.allclose(strategy.gradient_norm(model.parameters()), 2 * norm)
        assert (strategy.rank_state(), strategy.figures()) == ({}, {})

    on_ranks(1, work)


def test_copies_are_named_with_the_ranks_that_hold_them() -> None:
    def work(rank: int) -> tuple[object, str | None, int]:
        mesh = Mesh(dp_replicate=2, cp=2)
        strategy = build_strategy(DDPConfig(), context(rank, mesh), PrecisionConfig())
        return strategy.replicas, strategy.copied_over, strategy.loss_factor

    replicas, over, factor = on_ranks(4, work)[3]
    assert (replicas, over, factor) == ({"dp": [[0, 1, 2, 3]]}, "dp", 4), "ranks along cp hold copies too"


def test_shapes_leave_out_what_is_not_trained_unless_asked() -> None:
    with torch.device("meta"):
        model = build_model(MODEL, [])
    everything = model_shapes(model)
    assert len(everything.blocks) == 2 and sum(map(len, everything.blocks)) + len(everything.rest) == len(
        everything.parameters
    )
    model.token_embedding.weight.requires_grad_(False)  # type: ignore[union-attr]
    assert len(model_shapes(model).parameters) == len(everything.parameters) - 1
    assert model_shapes(model, frozen=True) == everything


def test_a_model_with_values_is_moved_and_one_without_is_filled() -> None:
    filled: list[nn.Module] = []
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    materialise(empty, torch.device("cpu"), lambda module: filled.append(module))
    linear = nn.Linear(2, 2)
    before = linear.weight.detach().clone()
    materialise(linear, torch.device("cpu"), lambda module: filled.append(module))
    assert filled == [empty] and not empty.weight.is_meta and torch.equal(linear.weight, before)


def test_plain_tensors_and_optimizers_are_their_own_part() -> None:
    tensor = torch.ones(2)
    assert local(tensor) is tensor
    optimizer = torch.optim.SGD([tensor.requires_grad_()], lr=0.1)
    assert owned_state(optimizer) is optimizer.state
