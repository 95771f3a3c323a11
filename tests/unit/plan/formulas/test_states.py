"""Bytes of model states: shards as torch cuts them, moments of each optimizer, what its update needs."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from dtk.config.schema import AdamWConfig, SGDConfig
from dtk.plan.formulas.holding import WINDOWS, optimizer_bytes, update_bytes, windows
from dtk.sharding.declared import shard_elements


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_windows_are_the_largest_of_the_consecutive_ones(sizes: list[int]) -> None:
    most = windows(sizes)
    assert all(sum(sizes[i : i + WINDOWS]) <= most for i in range(len(sizes)))
    assert max(sizes, default=0) <= most <= sum(sizes)
    assert windows([5, 1, 1, 4, 4, 4, 0]) == 12


SHAPES = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6)


@given(shapes=SHAPES, shards=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_the_first_shard_is_that_of_torch_chunk(shapes: list[tuple[int, ...]], shards: int) -> None:
    first = sum(torch.empty(shape, device="meta").chunk(shards)[0].numel() for shape in shapes)
    assert shard_elements(shapes, shards) == first


@given(shapes=SHAPES, shards=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_shards_hold_everything_and_waste_less_than_a_row_each(shapes: list[tuple[int, ...]], shards: int) -> None:
    whole, part = shard_elements(shapes, 1), shard_elements(shapes, shards)
    assert whole <= shards * part
    assert shards * part - whole <= (shards - 1) * sum(torch.Size(shape[1:]).numel() for shape in shapes)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (AdamWConfig(), 2 * 4 * 1000 + 4 * 3),
        (SGDConfig(momentum=0.9), 4 * 1000),
        (SGDConfig(momentum=0.0), 0),
    ],
)
def test_states_of_an_optimizer_by_hand(optimizer: AdamWConfig | SGDConfig, expected: int) -> None:
    assert optimizer_bytes(optimizer, 1000, 3) == expected


def test_states_are_those_that_torch_keeps() -> None:
    parameters = [torch.nn.Parameter(torch.ones(5, 3)), torch.nn.Parameter(torch.ones(7))]
    for config, made in (
        (AdamWConfig(), torch.optim.AdamW(parameters)),
        (SGDConfig(momentum=0.9), torch.optim.SGD(parameters, momentum=0.9)),
    ):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        made.step()
        states = [value for state in made.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
        assert sum(value.nbytes for value in states) == optimizer_bytes(config, 5 * 3 + 7, 2)


def test_the_update_needs_memory_where_no_kernel_is_fused() -> None:
    assert update_bytes(AdamWConfig(), 1000, 300, on_cuda=True) == 0
    unfused = AdamWConfig(fused=False)
    assert update_bytes(unfused, 1000, 300, on_cuda=True) == 4 * 1000  # foreach: one temporary per parameter
    assert update_bytes(unfused, 1000, 300, on_cuda=False) == 2 * 4 * 300  # one parameter after another
    assert update_bytes(SGDConfig(weight_decay=0.0, nesterov=False), 1000, 300, on_cuda=True) == 0
    assert update_bytes(SGDConfig(weight_decay=0.1), 1000, 300, on_cuda=True) == 4 * 1000
    assert update_bytes(SGDConfig(weight_decay=0.1), 1000, 300, on_cuda=False) == 4 * 300
