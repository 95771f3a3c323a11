"""Scripts that use DTensor, torch.distributed.pipelining and all_to_all: healthy ones finish, mistakes are located."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.preflight.simulations import SCRIPT, simulate

LAYOUTS = SCRIPT.with_name("layouts.py")
WRONG = {
    "tensor": ("hang.uneven_iterations", [1]),
    "pipeline": ("hang.pipeline_mismatch", []),
    "experts": ("hang.all_to_all_splits", [0, 1]),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], dict[str, Any]]:
    cases = [(name, *wrong) for name in WRONG for wrong in ((), ("wrong",))]
    jobs = [{"script": str(LAYOUTS), "script_arguments": list(case), "world_size": 4, "steps": 0} for case in cases]
    return dict(zip(cases, simulate(jobs, tmp_path_factory.mktemp("layouts")), strict=True))


@pytest.mark.parametrize("name", WRONG)
def test_a_healthy_one_finishes(results: dict[tuple[str, ...], dict[str, Any]], name: str) -> None:
    assert results[name,]["ends"], results[name,]


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_located(results: dict[tuple[str, ...], dict[str, Any]], name: str) -> None:
    """What other ranks raise when a message that they wait for never comes is no exception of the job."""
    (root,) = results[name, "wrong"]["roots"]
    assert (root["cause"], root["ranks"]) == WRONG[name], results[name, "wrong"]
    assert any(Path(file) == LAYOUTS for file, _ in root["where"]) or name == "tensor", root
