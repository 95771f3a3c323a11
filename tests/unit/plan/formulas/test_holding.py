"""Where the optimizer state is: all of it on the device, or the same amount elsewhere and windows of it here."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from dtk.config.schema import AdamWConfig, SGDConfig
from dtk.plan.formulas.holding import Holding, optimizer_bytes
from dtk.plan.formulas.shape import model_shape
from dtk.plan.formulas.tape import Buffer, Ledger
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
    made = OnlyStates(config, SHAPE, config.mesh(4), Ledger(), on_cuda)
    made.place_states(elements, tensors, lambda shape: max(1, shape[0] // 4))
    return made


@given(st.integers(1, 10**9), st.integers(1, 500), st.sampled_from(OPTIMIZERS))
def test_offloading_moves_the_states_and_loses_none(elements: int, tensors: int, optimizer: Any) -> None:
    here = placed(elements, tensors, optimizer)
    host = placed(elements, tensors, optimizer, offload="optimizer")
    file = placed(elements, tensors, optimizer, offload="optimizer", offload_to="nvme", offload_folder="/x")
    total = optimizer_bytes(optimizer, elements, tensors)
    assert here.ledger.total_bytes == total and (here.host_bytes, here.file_bytes, here.paged_bytes) == (0, 0, 0)
    for made, elsewhere in ((host, host.host_bytes), (file, file.file_bytes)):
        assert made.ledger.total_bytes + elsewhere == total, "counters stay, the rest moves"
        assert made.paged_bytes == 2 * elsewhere, "to the device and back in each step"
    assert host.file_bytes == file.host_bytes == 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:3])
def test_an_update_sees_moved_states_through_windows(optimizer: Any) -> None:
    """What is on the device for a moment is bounded by the windows, however large the model is."""
    small, large = (placed(n, 50, optimizer, offload="optimizer").temporary_bytes for n in (10**7, 10**9))
    assert 0 < small == large
    assert placed(3, 1, optimizer, offload="optimizer").temporary_bytes < small


def test_with_updates_in_backward_the_windows_count_in_backward_too() -> None:
    made = placed(10**6, 50, AdamWConfig(in_backward=True), offload="optimizer")
    assert made.ledger.in_use["temporaries"] > 0
    assert placed(10**6, 50, AdamWConfig(), offload="optimizer").ledger.in_use.get("temporaries", 0) == 0


def test_on_a_cpu_offloading_to_the_host_moves_nothing() -> None:
    made = placed(10**6, 50, AdamWConfig(), on_cuda=False, offload="optimizer")
    assert made.ledger.total_bytes == optimizer_bytes(AdamWConfig(), 10**6, 50) and made.host_bytes == 0
