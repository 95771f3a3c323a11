"""Degrees of the mesh: those that fit the ranks, and the nearest that do where they do not."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtk.config.schema import ParallelConfig
from dtk.errors import DtkError
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
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
        (ParallelConfig(tp=3), 8, "parallel.tp=3 does not fit 8 ranks: the degrees multiply to a divisor"),
        (ParallelConfig(tp=2, pp=3), 8, "parallel.pp=3 x parallel.tp=2 does not fit 8 ranks"),
        (ParallelConfig(tp=0), 2, "parallel.tp=0 is out of range: it must be 1 or more"),
        (ParallelConfig(pp=-1), 2, "parallel.pp=-1 is out of range: it must be 1 or more; the ranks that are left"),
        (ParallelConfig(ep=-1), 2, "parallel.ep=-1 is out of range"),
        (ParallelConfig(ep=3), 4, "parallel.ep=3 does not fit 4 ranks: ep=3 does not divide dp_shard x cp x tp = 4 -"),
    ],
)
def test_degrees_that_do_not_fit_are_one_line(parallel: ParallelConfig, ranks: int, message: str) -> None:
    with pytest.raises(DtkError) as caught:
        parallel.mesh(FSDPConfig(), ranks)
    assert str(caught.value).startswith(message)


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
