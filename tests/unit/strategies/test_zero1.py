"""ZeRO-1: what is broadcast after the update, and that each rank keeps the state of its share only."""

from functools import partial

import torch
from torch import nn

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import PrecisionConfig
from dtk.sharding.base import owned_state
from dtk.sharding.declared import Collective, ModelShapes
from dtk.strategies.zero1 import Zero1, Zero1Config
from tests.unit.rank_threads import context, on_ranks
from tests.unit.strategies.conftest import Calls


def test_updated_parameters_are_broadcast_by_each_rank() -> None:
    shapes = ModelShapes([(8, 4), (4,)], [], [])
    declared = Zero1Config().declare(shapes, Mesh(dp_replicate=2), PrecisionConfig(), 3)
    assert declared[-1] == Collective("broadcast", "dp", 2, 4 * 36)
    lonely = Zero1Config().declare(ModelShapes([(8, 4)], [], []), Mesh(dp_replicate=4), PrecisionConfig(), 1)
    assert lonely[-1] == Collective("broadcast", "dp", 4, 4 * (32 + 3)), "an element of each rank without parameters"


def test_state_is_dealt_out_and_parameters_stay_equal(calls: Calls) -> None:
    def work(rank: int) -> tuple[list[list[int]], list[list[float]]]:
        strategy = Zero1(Zero1Config(), context(rank, Mesh(dp_replicate=2)), PrecisionConfig())
        parameters = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(2, 2))]
        optimizer = strategy.build_optimizer([{"params": parameters}], partial(torch.optim.AdamW, lr=0.1))
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 2.0)
        optimizer.step()
        return [list(p.shape) for p in owned_state(optimizer)], [p.flatten().tolist() for p in parameters]

    (first, values), (second, others) = on_ranks(2, work)
    assert sorted([*first, *second]) == [[2, 2], [4]] and values == others and values[0][0] < 1
    assert calls.counts["broadcast", "dp"] == 4 and calls.sizes["broadcast", "dp"] == 2 * 32
