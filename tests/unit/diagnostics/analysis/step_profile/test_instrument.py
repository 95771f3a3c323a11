"""Whether the measurement itself destroys the overlap that it measures."""

import pytest

from diagnostics.analysis.step_profile.breakdown import Breakdown
from diagnostics.analysis.step_profile.overview import SWITCHES, Instrument, find_instrument
from tests.unit.diagnostics.analysis.step_profile.profiles import rank


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("TRUE", True), ("0", False), ("", False)])
def test_a_variable_that_serialises_the_work(name: str, value: str, is_on: bool) -> None:
    found = find_instrument([rank(0), rank(1)], {1: {name: value}})
    assert found == (Instrument((1,), name, value) if is_on else None)
    everywhere = find_instrument([rank(0), rank(3)], {-1: {name: value}})
    assert (everywhere.ranks if everywhere else None) == ((0, 3) if is_on else None)


@pytest.mark.parametrize(
    ("blocking", "kernels", "idle", "found"),
    [(1.0, 30, 100, True), (0.9, 30, 100, False), (1.0, 29, 100, False), (1.0, 30, 10, False)],
)
def test_launches_that_all_block(blocking: float, kernels: int, idle: int, found: bool) -> None:
    blocked = {"blocking": blocking, "long_kernels": kernels, "window": Breakdown(wall=2000, idle=idle)}
    assert find_instrument([rank(0, **blocked)], {}) == (Instrument((0,)) if found else None)
    assert find_instrument([rank(0, **blocked), rank(1)], {}) is None, "on one rank alone it is something else"


def test_a_run_on_cpu_has_no_launches() -> None:
    assert find_instrument([rank(0, on_device=False)], {-1: {"CUDA_LAUNCH_BLOCKING": "1"}}) is None
