"""How a run is closed whose ranks all ended by themselves."""

from pathlib import Path

import pytest

from diagnostics.contract.artifacts import CHECKPOINT_INFO, RunPaths, read_status
from dtk.config.compose import compose
from dtk.launch.console import Console, farewell
from dtk.launch.local import _ended_in_order
from dtk.record.run_folder import begin, close


@pytest.mark.parametrize(
    ("overrides", "kept", "state", "code"),
    [
        ([], None, "failed", 1),
        ([], 2, "failed", 1),
        ([], 3, "finished", 0),
        (["checkpoint=off"], None, "finished", 0),
    ],
)
def test_a_status_that_rank_0_could_not_write(
    tmp_path: Path, overrides: list[str], kept: int | None, state: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path)
    begin(paths, 0)
    if kept is not None:
        paths.checkpoint(kept).mkdir(parents=True)
        (paths.checkpoint(kept) / CHECKPOINT_INFO).write_text("{}")
    outcome = _ended_in_order(compose(["model=gpt2_tiny", "train.steps=3", *overrides]).config, paths)
    assert (outcome.state, outcome.exit_code) == (state, code)
    status = read_status(paths.status)
    assert (status.state, status.exit_code) == (state, code)
    assert ("no checkpoint of the last step" in status.reason) == bool(code)
    farewell(Console(), paths, outcome)
    assert ("no checkpoint of the last step" in capsys.readouterr().out) == bool(code)


def test_the_exit_code_of_a_status_that_rank_0_wrote(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    begin(paths, 0)
    close(paths, "failed", 1, reason="the last checkpoint failed", step=3)
    outcome = _ended_in_order(compose(["model=gpt2_tiny", "checkpoint=off"]).config, paths)
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
