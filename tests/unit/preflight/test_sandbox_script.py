"""Mistakes in plain scripts: each is found before the run, with its cause, its ranks and its line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.preflight.simulations import SCRIPT, simulate


@dataclass(frozen=True)
class Wrong:
    cause: str
    ranks: tuple[int, ...]
    steps: int = 2
    placed: bool = True
    """Whether the report names the line itself: DDP complains in the forward after it, and a `break` calls nothing."""


WRONG = {
    "forward": Wrong("hang.conditional_collective", (1,)),
    "full_tensor": Wrong("hang.conditional_collective", (0,)),
    "evaluation": Wrong("hang.conditional_collective", (0,)),
    "barrier": Wrong("hang.conditional_collective", (0,)),
    "state_dict": Wrong("hang.conditional_collective", (0,), steps=0),
    "group_order": Wrong("hang.group_order", (0, 1, 2, 3)),
    "receive_first": Wrong("hang.p2p_cycle", (0, 1, 2, 3)),
    "shape": Wrong("hang.signature_mismatch", (2,)),
    "dtype": Wrong("hang.signature_mismatch", (2,)),
    "new_group": Wrong("hang.signature_mismatch", (3,)),
    "unused": Wrong("hang.unused_parameters", (1,), placed=False),
    "early": Wrong("hang.uneven_iterations", (2,), placed=False),
}
MORE_WRONG = {
    "root": Wrong("hang.signature_mismatch", (3,)),
    "raises": Wrong("hang.rank_raised", (3,)),
}
HEALTHY = ("healthy", "healthy_ddp")


def jobs(cases: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {"script": str(SCRIPT), "script_arguments": [name], "world_size": 4, "steps": steps}
        for name, steps in cases.items()
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("scripts")
    cases = {**{name: value.steps for name, value in WRONG.items()}, **dict.fromkeys(HEALTHY, 0), "no_group": 2}
    results = simulate(jobs(cases), folder)
    assert not list(folder.iterdir()), "a preflight left files"
    return dict(zip(cases, results, strict=True))


def line_of(name: str) -> int:
    lines = SCRIPT.read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# wrong: {name}")]
    return number


@pytest.mark.parametrize("name", WRONG)
def test_found_before_the_run(results: dict[str, dict[str, Any]], name: str) -> None:
    check(name, WRONG[name], results[name])


@pytest.mark.extended
def test_more_that_is_found(tmp_path: Path) -> None:
    for name, result in zip(MORE_WRONG, simulate(jobs(dict.fromkeys(MORE_WRONG, 2)), tmp_path), strict=True):
        check(name, MORE_WRONG[name], result)


def check(name: str, wrong: Wrong, result: dict[str, Any]) -> None:
    assert not result.get("error"), result
    assert not result["ends"]
    (root,) = result["roots"]
    assert root["cause"] == wrong.cause, result
    assert tuple(root["ranks"]) == wrong.ranks, result
    if wrong.placed:
        assert [str(SCRIPT), line_of(name)] in root["where"], result
    assert any("nothing was launched" in note for note in result["notes"])


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said_of_a_healthy_script(results: dict[str, dict[str, Any]], name: str) -> None:
    assert results[name]["ends"], results[name]


def test_a_script_without_a_group(results: dict[str, dict[str, Any]]) -> None:
    assert "never calls torch.distributed.init_process_group" in results["no_group"]["error"]


def test_wrong_lines_are_marked_once() -> None:
    assert all(line_of(name) for name, wrong in {**WRONG, **MORE_WRONG}.items() if wrong.placed)
    assert Path(SCRIPT).is_file()
