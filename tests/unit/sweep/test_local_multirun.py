"""`dtk run -m`: every combination, in turns; what is left to do is continued."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from dtk.errors import DtkError
from dtk.sweep.local import multirun
from tests.cli.command import TINY


def typed(*overrides: str, runs: Path, **options: Any) -> argparse.Namespace:
    given = {"config_dir": None, "rerun": None, "trust": False, "cfg": False, "resume": False, **options}
    return argparse.Namespace(overrides=[*overrides, f"runs_folder={runs}", *TINY], **given)


def test_points_run_in_turns_and_resume_repeats_what_failed(tmp_path, launches, capsys) -> None:
    """The folders of these runs have no manifest: the comparison says so, and the rest of the summary comes anyway."""
    launches.ends = {3: "failed"}
    assert multirun(typed("strategy=ddp,fsdp", "repeats=2", runs=tmp_path)) == 1
    assert launches.seen == ["ddp", "fsdp", "ddp", "fsdp"]
    out = capsys.readouterr().out
    assert "3 of 4 runs done" in out and "not compared: " in out and "is missing" in out
    assert "to continue with the remaining runs: " in out and "points and their runs: " in out

    assert multirun(typed("strategy=ddp,fsdp", "repeats=2", runs=tmp_path, resume=True)) == 0
    assert launches.seen[4:] == ["fsdp"], "what is finished is not run again"
    assert "4 of 4 runs done" in capsys.readouterr().out
    with pytest.raises(DtkError, match="no sweep of this command to continue"):
        multirun(typed("strategy=ddp,fsdp", "repeats=3", runs=tmp_path, resume=True))
