"""`dtk nccl`: actions, and keys that are typed for an export."""

import json

import pytest

from dtk.commands.main import main
from dtk.commands.nccl import _slurm_nodes


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["nccl", *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code == 2 else captured.out


def test_every_preset_is_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(answer(capsys, "list", "--json"))
    assert {"auto", "infiniband"} <= listed.keys()
    for name, preset in listed.items():
        assert json.loads(answer(capsys, "show", name, "--json")) == preset


def test_a_preset_differs_from_another_and_not_from_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(answer(capsys, "diff", "infiniband", "infiniband", "--json")) == {"changed": {}}
    changed = json.loads(answer(capsys, "diff", "auto", "infiniband", "--json"))["changed"]
    assert changed and all(before != after for before, after in changed.values())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("interface", "is not KEY=VALUE"),
        ("interfaces=eth0", "does not use interfaces"),
        ("traffic_class=x", "traffic_class=x is not a number"),
        ("traffic_class=" + "9" * 5000, "is not a number"),
    ],
)
def test_a_key_that_a_preset_does_not_take_is_one_line(
    capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    assert message in answer(capsys, "export", "roce", override, "--format", "sh", code=2)


def test_the_nodes_of_a_slurm_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, nodes in (("4", 4), ("", None), ("0", None), ("four", None), ("\u0664", None)):
        monkeypatch.setenv("SLURM_NNODES", text)
        assert _slurm_nodes() == nodes
