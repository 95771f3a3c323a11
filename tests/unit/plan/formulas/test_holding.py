"""Bytes of model states: shards as torch cuts them, moments of each optimizer, and where they are."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from dtk.config.schema import AdamWConfig, SGDConfig
from dtk.plan.formulas.holding import WINDOWS, Holding, optimizer_bytes, update_bytes, windows
from dtk.plan.formulas.shape import model_shape
from dtk.plan.formulas.tape import Buffer, Ledger
from dtk.sharding.declared import shard_elements
from dtk.strategies.fsdp import FSDPConfig
from tests.unit.plan.closed_form_jobs import TINY, job

SHAPE = model_shape(TINY)
OPTIMIZERS = [AdamWConfig(), AdamWConfig(fused=False), SGDConfig(momentum=0.9), SGDConfig(momentum=0.0)]


class OnlyStates(Holding):
    """The base with nothing but the optimizer state."""

    def settle(self) -> None:
        """Nothing else lies there."""

    def gradient(self, name: str, gradient: Buffer) -> None:
        """Leave it."""

    def update(self) -> None:
        """Change nothing."""


def placed(elements: int, tensors: int, optimizer: Any, on_cuda: bool = True, **strategy: Any) -> OnlyStates:
    config = job(4, FSDPConfig(**strategy), optimizer=optimizer, device="cuda" if on_cuda else "cpu")
    only_states = OnlyStates(config, SHAPE, config.mesh(4), Ledger(), on_cuda)
    only_states.place_states(elements, tensors, lambda shape: max(1, shape[0] // 4))
    return only_states


@given(st.integers(1, 10**9), st.integers(1, 500), st.sampled_from(OPTIMIZERS))
def test_offloading_moves_the_states_and_loses_none(elements: int, tensors: int, optimizer: Any) -> None:
    here = placed(elements, tensors, optimizer)
    host = placed(elements, tensors, optimizer, offload="optimizer")
    file = placed(elements, tensors, optimizer, offload="optimizer", offload_to="nvme", offload_folder="/x")
    total = optimizer_bytes(optimizer, elements, tensors)
    assert here.ledger.total_bytes == total and (here.host_bytes, here.file_bytes, here.paged_bytes) == (0, 0, 0)
    for result, elsewhere in ((host, host.host_bytes), (file, file.file_bytes)):
        assert result.ledger.total_bytes + elsewhere == total, "counters stay, the rest moves"
        assert result.paged_bytes == 2 * elsewhere, "to the device and back in each step"
    assert host.file_bytes == file.host_bytes == 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:3])
def test_an_update_sees_moved_states_through_windows(optimizer: Any) -> None:
    """What is on the device for a moment is bounded by the windows, however large the model is."""
    small, large = (placed(n, 50, optimizer, offload="optimizer").temporary_bytes for n in (10**7, 10**9))
    assert 0 < small == large
    assert placed(3, 1, optimizer, offload="optimizer").temporary_bytes < small


def test_with_updates_in_backward_the_windows_count_in_backward_too() -> None:
    only_states = placed(10**6, 50, AdamWConfig(in_backward=True), offload="optimizer")
    assert only_states.ledger.in_use["temporaries"] > 0
    assert placed(10**6, 50, AdamWConfig(), offload="optimizer").ledger.in_use.get("temporaries", 0) == 0


def test_on_a_cpu_offloading_to_the_host_moves_nothing() -> None:
    only_states = placed(10**6, 50, AdamWConfig(), on_cuda=False, offload="optimizer")
    assert only_states.ledger.total_bytes == optimizer_bytes(AdamWConfig(), 10**6, 50) and only_states.host_bytes == 0


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
    for config, result in (
        (AdamWConfig(), torch.optim.AdamW(parameters)),
        (SGDConfig(momentum=0.9), torch.optim.SGD(parameters, momentum=0.9)),
    ):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        result.step()
        states = [
            value for state in result.state.values() for value in state.values() if isinstance(value, torch.Tensor)
        ]
        assert sum(value.nbytes for value in states) == optimizer_bytes(config, 5 * 3 + 7, 2)


def test_the_update_needs_memory_where_no_kernel_is_fused() -> None:
    assert update_bytes(AdamWConfig(), 1000, 300, on_cuda=True) == 0
    unfused = AdamWConfig(fused=False)
    assert update_bytes(unfused, 1000, 300, on_cuda=True) == 4 * 1000  # foreach: one temporary per parameter
    assert update_bytes(unfused, 1000, 300, on_cuda=False) == 2 * 4 * 300  # one parameter after another
    assert update_bytes(SGDConfig(weight_decay=0.0, nesterov=False), 1000, 300, on_cuda=True) == 0
    assert update_bytes(SGDConfig(weight_decay=0.1), 1000, 300, on_cuda=True) == 4 * 1000
    assert update_bytes(SGDConfig(weight_decay=0.1), 1000, 300, on_cuda=False) == 4 * 300
