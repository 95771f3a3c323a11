"""`dtk preflight` as a user types it: exit codes, one line for wrong input, nothing left behind, no torch for help."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, environment
from tests.warm_python import run_module

SCRIPT = ROOT / "tests" / "unit" / "preflight" / "script.py"


def dtk(folder: Path, *arguments: str, module: str = "dtk") -> "subprocess.CompletedProcess[str]":
    return run_module([module, *arguments], environment(OMP_NUM_THREADS="1"), folder, 120)


def test_help_needs_no_torch(tmp_path: Path) -> None:
    tried = "try: main(['preflight', '--help'])\nfinally: print('torch' in sys.modules)"
    code = f"import sys; from dtk.commands.main import main\n{tried}"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False
    )
    assert process.stdout.endswith("False\n"), process.stderr
    assert "--what-if" in process.stdout


def test_a_script_that_would_hang(tmp_path: Path) -> None:
    """In all forms of the report, from one process: each would load torch again."""
    requests = ["preflight", "--script", str(SCRIPT), "--world-size", "3", "--steps", "1"]
    code = f"""if True:
        from dtk.commands.main import main
        forms = (["--json", "--html", "page.html"], ["--markdown"])
        print([main([*{requests}, *form, "--", "barrier"]) for form in forms])"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(OMP_NUM_THREADS="1"),
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    value, end = json.JSONDecoder().raw_decode(process.stdout)
    assert (value["schema"], value["ends"], value["world_size"]) == ("dtk.preflight/1", False, 3)
    assert value["report"]["schema"] == "dtk.report/1"
    assert value["report"]["root_causes"][0]["cause"] == "hang.conditional_collective"
    markdown = process.stdout[end:]
    assert "**would hang: ranks 1-2 in " in markdown and "hang.conditional_collective" in markdown
    assert markdown.endswith("[1, 1]\n")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "hang.conditional_collective" in page and "script.py" in page


def test_the_page_of_a_job_that_ends_says_what_was_proven(tmp_path: Path) -> None:
    values = SCRIPT.with_name("values.py")
    requests = ["preflight", "--script", str(values), "--world-size", "2", "--steps", "0", "--html", "page.html"]
    process = dtk(tmp_path, *requests, "--", "objects")
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("would finish: ") and "page.html" in process.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "What was proven" in page and "every rank completes" in page


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_closed_streams(tmp_path: Path, closed: str) -> None:
    values = SCRIPT.with_name("values.py")
    command = [sys.executable, "-m", "dtk", "preflight", "--script", str(values), "--world-size", "2", "--", "split"]
    redirected = ["sh", "-c", f'exec "$@" {"1" if closed == "stdout" else "2"}>&-', "sh", *command]
    process = subprocess.run(
        redirected,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(OMP_NUM_THREADS="1"),
        timeout=120,
        check=False,
    )
    if closed == "stdout":
        assert (process.returncode, process.stderr.count("\n")) == (2, 1), process.stderr
        assert "standard output" in process.stderr
    else:
        assert process.returncode == 1
        assert process.stdout.startswith("would hang: ranks 0-1 in all_to_all_single")


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dtk.commands.main import main
    from dtk.preflight import run as preflight_run

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(preflight_run, "simulate_all", None)  # Would raise.
    for name, text in ((str(tmp_path), "it is a folder"), (str(tmp_path / "no" / "x.html"), "there is no folder")):
        assert main(["preflight", "--script", str(SCRIPT), "--world-size", "2", "--html", name]) == 2
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1


def test_a_run_that_would_hang_is_not_launched(tmp_path: Path) -> None:
    overrides = ["fault=group_order", "preflight=on", "data.max_bytes=300000", f"runs_folder={tmp_path / 'runs'}"]
    process = dtk(tmp_path, *overrides, module="dtk.run")
    assert process.returncode == 1, process.stderr
    assert process.stdout.startswith("would hang: ") and "hang.group_order" in process.stdout
    assert not (tmp_path / "runs").exists()


WRONG = {
    "no script": (["--script", "nowhere.py", "--world-size", "2"], "there is no script nowhere.py"),
    "no ranks": (["--script", str(SCRIPT)], "add --world-size 8"),
    "both": (["--script", str(SCRIPT), "--world-size", "2", "strategy=ddp"], "applies to dtk jobs"),
    "steps": (["--steps", "-1"], "--steps"),
    "no time": (["--rank-timeout-s", "0"], "--rank-timeout-s"),
    "time that is no number": (["--rank-timeout-s", "nan"], "--rank-timeout-s"),
    "zero steps": (["--steps", "0"], "--steps 0 is for scripts"),
    "arguments without a script": (["--", "x"], "belong to a script"),
    "a mesh that does not fit": (["strategy=hsdp", "strategy.dp_shard=3", "launcher.world_size=8"], "dp_shard"),
    "what if of a script": (["--script", str(SCRIPT), "--world-size", "2", "--what-if"], "needs a dtk job"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from dtk.commands.main import main

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # The command sets it for good.

    arguments, text = WRONG[name]
    assert main(["preflight", *arguments]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
