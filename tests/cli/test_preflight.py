"""`dtk preflight` as a user types it: exit codes, one line for wrong input, nothing left behind, no torch for help."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, environment

SCRIPT = ROOT / "tests" / "unit" / "preflight" / "script.py"


def dtk(folder: Path, *arguments: str, module: str = "dtk") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(OMP_NUM_THREADS="1"),
        timeout=120,
        check=False,
    )


def test_help_needs_no_torch(tmp_path: Path) -> None:
    tried = "try: main(['preflight', '--help'])\nfinally: print('torch' in sys.modules)"
    code = f"import sys; from dtk.cli import main\n{tried}"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False
    )
    assert process.stdout.endswith("False\n"), process.stderr
    assert "--what-if" in process.stdout


def test_a_script_that_would_hang(tmp_path: Path) -> None:
    process = dtk(tmp_path, "preflight", "--script", str(SCRIPT), "--world-size", "4", "--json", "--", "barrier")
    assert process.returncode == 1, process.stderr
    value = json.loads(process.stdout)
    assert (value["schema"], value["ends"], value["world_size"]) == ("dtk.preflight/1", False, 4)
    assert value["report"]["schema"] == "dtk.report/1"
    assert value["report"]["root_causes"][0]["cause"] == "hang.conditional_collective"
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_would_hang_is_not_launched(tmp_path: Path) -> None:
    overrides = ["fault=group_order", "preflight=on", "data.max_bytes=300000", f"runs_folder={tmp_path / 'runs'}"]
    process = dtk(tmp_path, *overrides, module="dtk.run")
    assert process.returncode == 1, process.stderr
    assert process.stdout.startswith("would hang: ") and "hang.group_order" in process.stdout
    assert not (tmp_path / "runs").exists()


WRONG = {
    "no script": (["--script", "nowhere.py", "--world-size", "2"], "there is no script nowhere.py"),
    "no ranks": (["--script", str(SCRIPT)], "add --world-size 8"),
    "both": (["--script", str(SCRIPT), "--world-size", "2", "strategy=ddp"], "is for a job of dtk"),
    "steps": (["--steps", "-1"], "--steps"),
    "zero steps": (["--steps", "0"], "--steps 0 is for scripts"),
    "arguments without a script": (["--", "x"], "belongs to a script"),
    "what if of a script": (["--script", str(SCRIPT), "--world-size", "2", "--what-if"], "needs a job of dtk"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line(capsys: pytest.CaptureFixture[str], name: str) -> None:
    from dtk.cli import main

    arguments, told = WRONG[name]
    assert main(["preflight", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_mesh_that_does_not_fit(tmp_path: Path) -> None:
    process = dtk(tmp_path, "preflight", "strategy=hsdp", "strategy.dp_shard=3", "launcher.world_size=8")
    assert process.returncode == 2
    assert process.stderr.startswith("dtk: ") and process.stderr.count("\n") == 1
