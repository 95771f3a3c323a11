"""`dtk attach`: how a job is named, and what is refused before anything is looked at."""

import pytest

from dtk.attach.processes import RankProcess
from dtk.commands.attach import _line
from dtk.commands.main import main


def ranks(*numbers: int, command: str = "python train.py") -> dict[int, RankProcess]:
    return {n: RankProcess(100 + n, n, 16, ("job",), command, {}) for n in numbers}


def test_a_job_is_named_by_its_ranks_and_processes() -> None:
    assert _line(ranks(0, 1, 2, 3)) == "ranks 0-3 of 16 (pids 100 101 102 103): python train.py"
    assert _line(ranks(*range(10))).startswith("ranks 0-9 of 16 (pids 100 101 102 103 104 105 106 107 and 2 more): ")
    assert len(_line(ranks(0, command="x" * 500))) < 150
    assert _line(ranks(0, command="a\x1b[31m\n\u202e")).endswith(r": a\x1b[31m\n\u202e")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "8", "--every-s", "10"], "8 rounds 10 s apart exceed 45 s"),
        (["--rounds", "1"], "is not a whole number from 2 to 8"),
        (["0"], "is not a whole number from 1 to"),
    ],
)
def test_options_that_cannot_be_used_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["attach", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
