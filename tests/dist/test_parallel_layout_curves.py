"""Losses of every layout over 20 steps, and from a checkpoint that one process reads, are those of `single`."""

from pathlib import Path
from typing import Any

import pytest

from tests.dist.layouts import EXPERTS, LAYOUTS, differences

TOLERANCE = 1e-5
"""Relative. Measured: at most 2e-6 (docs/strategies.md)."""


def cases(ranks: int, *marks: Any) -> Any:
    return pytest.param(ranks, marks=marks, id=f"world{ranks}")


@pytest.mark.parametrize(
    "ranks",
    [
        cases(2, pytest.mark.extended, pytest.mark.timeout(900)),
        cases(4, pytest.mark.extended, pytest.mark.timeout(900)),
        cases(8, pytest.mark.extended, pytest.mark.timeout(900)),
    ],
)
def test_loss_curves_of_all_layouts_are_those_of_one_process(ranks: int, tmp_path: Path) -> None:
    result = differences("gpt2_tiny", 32, ranks, LAYOUTS[ranks], tmp_path)
    result |= differences("moe_tiny", 32, ranks, {f"moe, {n}": typed for n, typed in EXPERTS[ranks].items()}, tmp_path)
    assert {name: worst for name, worst in result.items() if max(worst) > TOLERANCE} == {}


@pytest.mark.timeout(120)
def test_some_loss_curves_in_every_run_of_the_tests(tmp_path: Path) -> None:
    names = ("fsdp, tp 2", "ddp, pp 2, interleaved", "zero1, ulysses 2")
    result = differences("gpt2_tiny", 32, 2, {name: LAYOUTS[2][name] for name in names}, tmp_path)
    assert {name: worst for name, worst in result.items() if max(worst) > TOLERANCE} == {}


def test_the_table_has_24_layouts_on_up_to_4_ranks() -> None:
    assert sum(len(layouts) for ranks, layouts in LAYOUTS.items() if ranks <= 4) >= 24
