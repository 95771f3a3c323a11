"""What fully_shard holds at each moment: gathers ahead, reshard, reductions, offload; sizes worked by hand."""

from math import prod
from typing import Any

import pytest

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import AdamWConfig, MoEConfig
from dtk.plan.formulas.holding import ROOT
from dtk.plan.formulas.shape import elements, model_shape
from dtk.plan.formulas.sharding import Sharded, shard_units
from dtk.plan.formulas.tape import Ledger
from dtk.sharding.declared import shard_elements
from dtk.strategies.fsdp import FSDPConfig
from tests.unit.plan.closed_form_jobs import TINY, gpt, job

RANKS = 4
SHAPE = model_shape(TINY)
BLOCK = elements(SHAPE.block)
"""Elements of a block: all rows divide by the ranks."""


def sharded_of(unit_size: int = 1, precision: str = "float32", optimizer: Any = None, **strategy: Any) -> Sharded:
    section = FSDPConfig(blocks_per_unit=unit_size, **strategy)
    config = job(RANKS, section, precision=precision, optimizer=optimizer)
    units = shard_units(SHAPE, TINY.layers, unit_size)
    sharded = Sharded(config, SHAPE, config.mesh(RANKS), Ledger(), False, shards=RANKS, units=units)
    sharded.settle()
    return sharded


def test_states_are_a_shard_each() -> None:
    sharded = sharded_of()
    part = shard_elements(SHAPE.shapes, RANKS)
    assert sharded.ledger.in_use["parameters"] == 4 * part
    assert sharded.ledger.in_use["optimizer states"] == 2 * 4 * part + 4 * len(SHAPE.shapes)
    assert sharded.host_bytes == 0


def test_offloaded_states_are_on_the_host() -> None:
    sharded = sharded_of(offload="parameters")
    part = shard_elements(SHAPE.shapes, RANKS)
    assert sharded.ledger.total_bytes == 0
    # Parameters, two moments with a counter each, gradients; the fused update needs nothing more.
    assert sharded.host_bytes == 4 * part + 2 * 4 * part + 4 * len(SHAPE.shapes) + 4 * part
    in_backward = sharded_of(offload="parameters", optimizer=AdamWConfig(in_backward=True))
    assert in_backward.host_bytes == sharded.host_bytes - 4 * part


def test_states_in_a_file_leave_windows_and_counters() -> None:
    whole, part = sharded_of(), shard_elements(SHAPE.shapes, RANKS)
    sharded = sharded_of(offload="optimizer", offload_to="nvme")
    assert sharded.ledger.total_bytes == whole.ledger.total_bytes - 2 * 4 * part
    assert (sharded.file_bytes, sharded.paged_bytes, sharded.host_bytes) == (8 * part, 16 * part, 0)
    assert 0 < sharded.temporary_bytes < 8 * part
    both = sharded_of(offload="parameters", offload_to="nvme")
    assert both.ledger.total_bytes == 0 and both.file_bytes == 12 * part
    assert both.host_bytes == 4 * part + 4 * len(SHAPE.shapes) + sharded.temporary_bytes
    assert sharded_of(offload="optimizer").ledger.total_bytes == whole.ledger.total_bytes, (
        "the CPU's memory is the host's"
    )


def gathered(sharded: Sharded) -> set[int]:
    return set(sharded.gathered) | set(sharded.arriving)


def test_forward_keeps_one_unit_and_the_root_and_backward_asks_ahead() -> None:
    sharded = sharded_of()
    sharded.before_forward(ROOT)
    for unit in range(TINY.layers):
        sharded.before_forward(unit)
        assert gathered(sharded) == {ROOT, unit}
        sharded.after_forward(unit)
    sharded.after_forward(ROOT)
    assert gathered(sharded) == {ROOT}
    sharded.before_backward(ROOT)
    assert gathered(sharded) == {ROOT, TINY.layers - 1}
    sharded.before_backward(TINY.layers - 1)
    assert gathered(sharded) == {ROOT, TINY.layers - 1, TINY.layers - 2}


@pytest.mark.parametrize("depth", [2, 3])
def test_a_depth_is_asked_for_in_forward_too(depth: int) -> None:
    sharded = sharded_of(prefetch_depth=depth)
    sharded.before_forward(ROOT)
    sharded.before_forward(0)
    assert gathered(sharded) == {ROOT, *range(min(depth + 1, TINY.layers))}


def test_without_reshard_units_stay_until_backward() -> None:
    sharded = sharded_of(reshard_after_forward=False)
    sharded.before_forward(ROOT)
    for unit in range(TINY.layers):
        sharded.before_forward(unit)
        sharded.after_forward(unit)
    sharded.after_forward(ROOT)
    assert set(sharded.gathered) == {ROOT, *range(TINY.layers)}
    assert sharded.ledger.in_use["gathered parameters"] == 4 * SHAPE.parameters
    assert sharded.whole_bytes(accumulated=False) == 4 * SHAPE.parameters
    assert sharded.whole_bytes(accumulated=True) == 2 * 4 * SHAPE.parameters
    assert sharded_of().whole_bytes(accumulated=False) == 0


def backward(sharded: Sharded, last: bool) -> None:
    """The gradients of one unit, and its reduction."""
    sharded.last = last
    sharded.before_forward(ROOT)
    sharded.before_forward(0)
    for name, shape in SHAPE.block:
        size = 4 * prod(shape)
        sharded.gradient(f"blocks.0.{name}", sharded.ledger.allocate("gradients", size))
    sharded.after_backward(0)


def test_gradients_wait_whole_and_are_reduced_in_the_last_micro_batch() -> None:
    sharded = sharded_of()
    backward(sharded, last=False)
    assert sharded.ledger.in_use["gradients"] == 4 * BLOCK and not sharded.reduced
    backward(sharded, last=True)
    assert sharded.ledger.in_use["gradients"] == 4 * BLOCK // RANKS
    assert sharded.ledger.in_use["buckets"] == 4 * BLOCK, "kept until the next reduction begins"
    assert len(sharded.piled()) == 1
    sharded.after_backward(ROOT)
    assert sharded.ledger.in_use["buckets"] == 0
    sharded.update()
    assert sharded.ledger.in_use["gradients"] == 0


def test_gradients_in_16_bits_wait_and_end_in_float32() -> None:
    sharded = sharded_of(precision="bfloat16")
    backward(sharded, last=False)
    first = sharded.ledger.in_use["gradients"]
    assert first == 2 * 4 * BLOCK, "what came in 16 bits waits in the type of the reduction, twice as large"
    backward(sharded, last=True)
    assert sharded.ledger.in_use["gradients"] == 4 * BLOCK // RANKS


def test_an_update_in_backward_or_on_the_host_keeps_no_shard() -> None:
    for sharded in (sharded_of(optimizer=AdamWConfig(in_backward=True)), sharded_of(offload="parameters")):
        backward(sharded, last=True)
        assert sharded.ledger.in_use["gradients"] == 0 and not sharded.reduced


def test_units_of_blocks() -> None:
    shape = model_shape(gpt(layers=5))
    assert shard_units(shape, 5, 0) == []
    assert [len(unit.parameters) // len(shape.block) for unit in shard_units(shape, 5, 2)] == [2, 2, 1]


@pytest.mark.parametrize("size", [0, 1, 2, 3])
@pytest.mark.parametrize("dense", [0, 1])
def test_experts_are_units_before_the_block_that_they_are_of(size: int, dense: int) -> None:
    config = MoEConfig(name="moe", layers=5, dense_layers=dense)
    shape, section = model_shape(config, ep=2), FSDPConfig(blocks_per_unit=size)
    units = shard_units(shape, 5, size)
    sharded = Sharded(
        job(RANKS, section, config), shape, Mesh(dp_shard=4, ep=2), Ledger(), False, shards=4, units=units
    )
    apart = [sharded.unit(i, experts=True) for i in range(dense, 5)]
    assert apart == [i for i, unit in enumerate(units) if unit.experts]
    for i in range(5) if size else ():
        assert not units[sharded.unit(i)].experts and (i < dense or sharded.unit(i) > sharded.unit(i, experts=True))
    assert len(units) == 5 - dense + (-(-5 // size) if size else 0)
