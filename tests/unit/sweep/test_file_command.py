"""The `command` of a sweep file: what it fixes for every point, and commands that start something else."""

from typing import Any

import pytest

from dtk.errors import DtkError
from dtk.sweep.file import CHOICES, DEFAULT, fixed_overrides


@pytest.mark.parametrize(
    ("command", "fixed"),
    [
        (DEFAULT, ["tracker=wandb"]),
        (["dtk", "run", "model=gpt2_tiny", CHOICES, "train.steps=3"], ["model=gpt2_tiny", "train.steps=3"]),
        (["${env}", "python", "-m", "${program}", CHOICES], []),
        (["srun", "-n", "4", "python", "-m", "dtk.run", CHOICES], []),
    ],
)
def test_what_stands_beside_the_parameters_holds_for_every_point(command: list[str], fixed: list[str]) -> None:
    assert fixed_overrides({"command": command, "program": "dtk.run"}) == fixed


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (None, "no command"),
        ("dtk run", "not a list of words"),
        (["dtk", 3], "not a list of words"),
        (["python", "train.py", CHOICES], "does not run dtk"),
        (["python", "-m", "${program}", CHOICES], "does not run dtk"),
        (["dtk", "run"], "0 times"),
        (["dtk", "run", CHOICES, CHOICES], "2 times"),
        (["dtk", "run", CHOICES, "--multirun"], "--multirun cannot be used"),
        (["dtk", "run", CHOICES, "${args}"], "${args} cannot be used"),
        (["dtk", "run", CHOICES, "strategy=ddp,fsdp"], "asks for several runs"),
    ],
)
def test_a_command_that_dtk_could_not_run_is_refused(command: Any, what: str) -> None:
    content = {"program": "train.py"} if command is None else {"command": command, "program": "train.py"}
    with pytest.raises(DtkError) as refused:
        fixed_overrides(content)
    assert what in str(refused.value)
