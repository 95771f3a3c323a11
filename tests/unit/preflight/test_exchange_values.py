"""What collectives return is right where code may read it, and transfers of two lengths are found."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.preflight.simulations import simulate

SCRIPT = Path(__file__).with_name("values.py")
HEALTHY = {"decide": (3, 0), "objects": (3, 0), "join": (3, 0), "join, cut short": (2, 2)}
ROWS = "Rank 1 sends 12 bytes to rank 0", "rank 0 expects 4 bytes"
LENGTHS = {
    "split": ("rank 1 sends 3 to rank 0, which expects 1",),
    "lists": ROWS,
    "gathered": ("Rank 1 sends 8 bytes to rank 0", "rank 0 expects 4 bytes"),
    "scattered": ("Rank 0 sends 8 bytes to rank 1", "rank 1 expects 12 bytes"),
    "sent": ROWS,
}
OTHERS = ("root", "stops", "all raise")
MODEL = ["model=custom", "model._target_=tests.unit.preflight.model.Reads", "allow_targets=[tests.unit.preflight.*]"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("values")
    cases = {**HEALTHY, **dict.fromkeys(LENGTHS, (2, 0)), **dict.fromkeys(OTHERS, (3, 0))}
    requests: list[dict[str, Any]] = [
        {"script": str(SCRIPT), "script_arguments": [name.partition(",")[0]], "world_size": ranks, "steps": steps}
        for name, (ranks, steps) in cases.items()
    ]
    requests.append({"overrides": [*MODEL, "strategy=fsdp", "train.global_batch_size=4"], "world_size": 4, "steps": 4})
    return dict(zip([*cases, "model"], simulate(requests, folder), strict=True))


def line_of(name: str) -> int:
    lines = SCRIPT.read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# wrong: {name}")]
    return number


@pytest.mark.parametrize("name", [*HEALTHY, "model"])
def test_values_that_code_reads_are_right(results: dict[str, dict[str, Any]], name: str) -> None:
    assert results[name].get("ends"), json.dumps(results[name], indent=1)


@pytest.mark.parametrize("name", LENGTHS)
def test_transfers_of_two_lengths_are_found_at_both_ends(results: dict[str, dict[str, Any]], name: str) -> None:
    result = results[name]
    (root,) = result["roots"]
    cause = "hang.all_to_all_splits" if name == "split" else "hang.signature_mismatch"
    assert (root["cause"], root["ranks"]) == (cause, [0, 1]), result
    lines = {"sent": {line_of("sent"), line_of("sent") + 2}}.get(name, {line_of(name)})
    assert {tuple(place) for place in root["where"]} == {(str(SCRIPT), line) for line in lines}
    assert len(root["where"]) == len(root["ranks"])
    assert all(text in root["summary"] for text in LENGTHS[name]), root["summary"]


def test_where_no_two_ranks_agree_nobody_is_blamed(results: dict[str, dict[str, Any]]) -> None:
    (root,) = results["root"]["roots"]
    assert (root["cause"], root["ranks"]) == ("hang.signature_mismatch", []), root
    assert "No two ranks agree" in root["summary"]


def test_what_all_ranks_raise_fails_and_does_not_hang(results: dict[str, dict[str, Any]]) -> None:
    result = results["all raise"]
    assert (result["ends"], result["hangs"]) == (False, False)
    assert result["answer"].startswith("would fail: ranks 0-2 raised ValueError")
    assert any("The job would fail here." in note for note in result["notes"])


def test_a_rank_that_ended_is_in_no_call(results: dict[str, dict[str, Any]]) -> None:
    result = results["stops"]
    assert "rank 1 ended" in result["stands"]
    (root,) = result["roots"]
    assert (root["cause"], root["ranks"]) == ("hang.uneven_iterations", [1])
    assert root["does"][0].startswith("ends after ") and root["does"][1].startswith("waits in "), root
    assert "is the last call on one side" in root["summary"]
