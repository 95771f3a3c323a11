"""Degrees of the mesh: those that fit the ranks, and the nearest that do where they do not."""

import math
import re

import pytest
from hypothesis import given, settings, strategies as st

from dtk.config.schema import ParallelConfig
from dtk.errors import DtkError
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.single import SingleConfig


@settings(max_examples=100)
@given(st.integers(1, 48), st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_the_degrees_multiply_to_the_ranks_or_the_advice_fits(ranks: int, tp: int, cp: int, pp: int) -> None:
    try:
        mesh = ParallelConfig(tp=tp, cp=cp, pp=pp).mesh(FSDPConfig(), ranks)
    except DtkError as error:
        assert ranks % (tp * cp * pp)
        advised = {name: int(number) for name, number in re.findall(r"parallel\.(\w+)=(\d+)", error.fix)}
        assert ranks % math.prod(advised.values()) == 0
        assert ParallelConfig(**{"tp": 1, "cp": 1, "pp": 1, **advised}).mesh(FSDPConfig(), ranks).world_size == ranks
        return
    assert mesh.world_size == ranks and mesh.dp_size == ranks // (tp * cp * pp)
    assert (mesh.tp, mesh.cp, mesh.pp) == (tp, cp, pp)


def test_the_strategy_divides_the_ranks_that_are_left() -> None:
    sharded, replicated = (ParallelConfig(tp=2).mesh(strategy, 8) for strategy in (FSDPConfig(), DDPConfig()))
    assert (sharded.dp_shard, sharded.dp_replicate) == (4, 1)
    assert (replicated.dp_shard, replicated.dp_replicate) == (1, 4)


@pytest.mark.parametrize(
    ("parallel", "ranks", "message"),
    [
        (ParallelConfig(dp_shard=2), 8, "parallel.dp_shard=2 does not fit 8 ranks: strategy=fsdp makes it 8 - use"),
        (ParallelConfig(dp_replicate=2), 8, "parallel.dp_replicate=2 does not fit 8 ranks: strategy=fsdp makes it 1"),
        (ParallelConfig(tp=3), 8, "parallel.tp=3 does not fit 8 ranks: the product of the degrees must divide"),
        (ParallelConfig(tp=2, pp=3), 8, "parallel.pp=3 x parallel.tp=2 does not fit 8 ranks"),
        (ParallelConfig(tp=0), 2, "parallel.tp=0 is out of range: it must be 1 or more"),
        (ParallelConfig(pp=-2), 2, "parallel.pp=-2 is out of range: it must be 1 or more, or -1 for the ranks"),
        (ParallelConfig(pp=-1, tp=-1), 4, "parallel.pp and parallel.tp are -1: only one degree can be the remainder"),
        (ParallelConfig(pp=-1, tp=3), 4, "parallel.tp=3 does not fit 4 ranks"),
        (ParallelConfig(ep=-2), 2, "parallel.ep=-2 is out of range"),
        (ParallelConfig(ep=3), 4, "parallel.ep=3 does not fit 4 ranks: ep=3 does not divide dp_shard x cp x tp = 4 -"),
    ],
)
def test_degrees_that_do_not_fit_are_one_line(parallel: ParallelConfig, ranks: int, message: str) -> None:
    with pytest.raises(DtkError) as caught:
        parallel.mesh(FSDPConfig(), ranks)
    assert str(caught.value).startswith(message)


def test_minus_one_is_the_rest_of_the_ranks() -> None:
    assert ParallelConfig(tp=-1).mesh(DDPConfig(), 8).tp == 8
    assert ParallelConfig(tp=-1, pp=2).filled(DDPConfig(), 8).tp == 4
    shards = ParallelConfig(cp=-1, dp_shard=2).mesh(FSDPConfig(), 8)
    assert (shards.cp, shards.dp_shard) == (4, 2)
    replicas = ParallelConfig(pp=-1).mesh(HSDPConfig(dp_replicate=2, dp_shard=2), 8)
    assert (replicas.pp, replicas.dp_replicate, replicas.dp_shard) == (2, 2, 2)
    assert ParallelConfig(ep=-1, tp=2).mesh(FSDPConfig(), 8).ep == 8
    assert ParallelConfig(ep=-1, pp=-1, dp_shard=4).mesh(FSDPConfig(), 8).ep == 4


def test_a_degree_that_is_said_and_fits_is_taken() -> None:
    assert ParallelConfig(dp_shard=8, dp_replicate=1).mesh(FSDPConfig(), 8).dp_shard == 8


def test_a_dimension_that_the_strategy_lacks() -> None:
    with pytest.raises(DtkError, match="it does not implement the mesh dimension tp"):
        ParallelConfig(tp=2).mesh(SingleConfig(), 2)


def test_what_was_chosen_as_typed() -> None:
    parallel = ParallelConfig(tp=2, pp=4, ep=2)
    assert parallel.cut == ["parallel.pp=4", "parallel.tp=2", "parallel.ep=2"]
    assert ParallelConfig().cut == []


def test_the_pipeline_of_a_step() -> None:
    pipeline = ParallelConfig(pp=4, schedule="interleaved_1f1b", stages_per_rank=2).pipeline(8)
    assert (pipeline.ranks, pipeline.stages, pipeline.micro_batches) == (4, 8, 8)
    assert 0 < pipeline.ideal_bubble < ParallelConfig(pp=4).pipeline(8).ideal_bubble
