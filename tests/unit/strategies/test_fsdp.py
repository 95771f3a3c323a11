"""fully_shard: gradients of the whole batch on every shard, and the calls that it declares."""

from typing import Any

import pytest
import torch

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import PrecisionConfig
from dtk.models.build import build_model
from dtk.parallel.precision import DTYPES
from dtk.sharding.base import local
from dtk.sharding.declared import ModelShapes
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.zero2 import Zero2Config
from tests.unit.rank_threads import on_ranks
from tests.unit.strategies.conftest import MODEL, Calls, backward, reference, tokens, wrapped

BF16 = PrecisionConfig(compute_dtype="bfloat16", reduce_dtype="float32")
CASES: dict[str, tuple[Any, Mesh, int, PrecisionConfig]] = {
    "fsdp": (FSDPConfig(), Mesh(dp_shard=2), 2, PrecisionConfig()),
    "one unit, bf16": (FSDPConfig(blocks_per_unit=0), Mesh(dp_shard=2), 1, BF16),
    "zero2, two blocks a unit": (Zero2Config(blocks_per_unit=2), Mesh(dp_shard=2), 1, PrecisionConfig()),
    "int8": (FSDPConfig(quantized_weights=True, quantized_gradients=True), Mesh(dp_shard=2), 2, BF16),
    "hsdp, prefetching": (HSDPConfig(prefetch_depth=2), Mesh(dp_replicate=2, dp_shard=2), 1, PrecisionConfig()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_issues_what_it_declares(name: str, calls: Calls) -> None:
    section, mesh, accumulation, precision = CASES[name]

    def work(rank: int) -> tuple[Any, list[Any], torch.dtype]:
        parts = wrapped(section, rank, mesh, precision)
        backward(parts, [tokens(rank)] * accumulation)
        norm = parts[0].gradient_norm(parts[1].parameters())
        assert parts[0].stream_dtype == DTYPES[precision.compute_dtype]
        return norm, parts[0].collectives(parts[1], accumulation, clips=True), parts[0].reduce_dtype

    results = on_ranks(mesh.world_size, work)
    declared = {(c.op, c.group): (c.count, c.size_bytes) for c in results[0][1]}
    by_key = {
        key: (count // mesh.world_size, calls.sizes[key] // mesh.world_size) for key, count in calls.counts.items()
    }
    assert by_key == declared
    assert all(norm == results[0][0] for norm, *_ in results), "the same number on every rank"


@pytest.mark.parametrize("section", [FSDPConfig(), Zero2Config(), HSDPConfig(dp_replicate=2)], ids=lambda s: s.name)
def test_shards_hold_the_gradient_of_the_global_batch(section: Any) -> None:
    mesh = section.mesh(2)
    batches = [tokens(rank) for rank in range(2)]
    whole = dict(reference(batches).named_parameters())

    def work(rank: int) -> None:
        parts = wrapped(section, rank, mesh)
        backward(parts, [batches[rank]])
        for name, parameter in parts[1].named_parameters():
            expected = whole[name].grad
            assert expected is not None and parameter.grad is not None
            rows = slice(None)
            if mesh.dp_shard > 1:
                size = -(-len(expected) // 2)
                rows = slice(rank * size, (rank + 1) * size)
            assert torch.allclose(local(parameter.grad), expected[rows], atol=1e-6), name
        parts[0].scale_gradients(parts[1].parameters(), torch.tensor(0.5))
        assert torch.allclose(
            parts[0].gradient_norm(parts[1].parameters()),
            0.5 * torch.nn.utils.get_total_norm([p.grad for p in whole.values() if p.grad is not None]),
        )
        parts[0].release(parts[1])

    on_ranks(2, work)


def test_without_ranks_to_share_with_nothing_is_gathered() -> None:
    with torch.device("meta"):
        model = build_model(MODEL, [])
    shapes = ModelShapes([tuple(p.shape) for p in model.parameters()], [], [tuple(p.shape) for p in model.parameters()])
    assert FSDPConfig().declare(shapes, Mesh(), PrecisionConfig(), 1) == []


def test_experts_are_units_of_their_own() -> None:
    shapes = ModelShapes([(8, 4)], [[(8, 4)]], [], experts=[[(16, 4)], [(16, 4)]])
    mesh = Mesh(dp_replicate=2, dp_shard=4, ep=2)
    declared = FSDPConfig().declare(shapes, mesh, BF16, 3)
    result = {(c.op, c.group): (c.count, c.size_bytes) for c in declared}
    assert result["all_gather", "expert_shard"] == (2 * 3 * 2, 2 * 3 * 128 * 2)
    assert result["reduce_scatter", "expert_shard"] == (2, 128 * 4)
    assert result["all_reduce", "expert_replicate"] == (2, 128 // 2 * 4)
    assert result["all_reduce", "dp_replicate"] == (1, 32 // 4 * 4)
