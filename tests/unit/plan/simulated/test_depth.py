"""Which depths stand for a deep model, and the straight line through them."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from dtk.config.schema import CustomModelConfig
from dtk.plan.job import planned_job
from dtk.plan.simulated.engine import DIRECT, at_depth, depths, edge_blocks, extended
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from tests.unit.plan.closed_form_jobs import TINY
from tests.unit.plan.closed_form_jobs import job as made

SIZES = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=32"]


def job(world_size, *overrides):
    return planned_job([*SIZES, *overrides], None, world_size).config


def test_depths_keep_the_remainder_of_a_period():
    assert depths(job(4, "strategy=fsdp", "model.layers=50")) == (4, 8)
    assert depths(job(4, "strategy=fsdp", "model.layers=12")) == (12,)
    assert depths(job(4, "strategy=ddp", "model.layers=50")) == (50,)
    paired = job(4, "strategy=fsdp", "model.layers=99", "strategy.blocks_per_unit=2")
    assert depths(paired) == (9, 17)
    assert extended((4, 8), [{"a": 10, "b": 4}, {"a": 30}], 20) == {"a": 90, "b": 0}


@given(
    layers=st.integers(1, 400),
    unit=st.integers(0, 4),
    every=st.integers(0, 4),
    prefetch=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_two_depths_are_shallower_and_have_the_same_remainder(
    layers: int, unit: int, every: int, prefetch: int
) -> None:
    strategy = FSDPConfig(blocks_per_unit=unit, prefetch_depth=prefetch)
    config = made(4, strategy, dataclasses.replace(TINY, layers=layers), recompute=every)
    chosen = depths(config)
    if len(chosen) == 1:
        assert chosen == (layers,)
        return
    small, large = chosen
    period = edge_blocks(config) // 2
    assert layers >= DIRECT and small < large < layers
    assert small % period == large % period == layers % period
    assert small >= (prefetch + 3) * period, "the window of gathered units is full"


def test_buckets_of_a_fixed_size_are_simulated_whole() -> None:
    assert depths(made(4, DDPConfig(), dataclasses.replace(TINY, layers=300))) == (300,)


def test_the_same_job_with_other_blocks() -> None:
    config = made(4, FSDPConfig(), dataclasses.replace(TINY, layers=40))
    assert at_depth(config, 40) is config
    assert at_depth(config, 8).model == dataclasses.replace(TINY, layers=8)
    custom = dataclasses.replace(config, model=CustomModelConfig(_target_="mine.Model", name="mine"))
    assert depths(custom) == (0,) and at_depth(custom, 0) is custom


@given(slope=st.integers(-5, 50), offset=st.integers(0, 1000), layers=st.integers(9, 500))
@settings(max_examples=60, deadline=None)
def test_what_grows_in_a_line_is_exact_and_never_negative(slope: int, offset: int, layers: int) -> None:
    low, high = ({"bytes": max(0, offset + slope * depth)} for depth in (4, 8))
    expected = offset + slope * layers if offset + slope * 8 >= 0 else 0
    assert extended((4, 8), [low, high], layers)["bytes"] == max(0, expected)


def test_one_depth_is_taken_as_it_is() -> None:
    assert extended((12,), [{"a": 3}], 12) == {"a": 3}
