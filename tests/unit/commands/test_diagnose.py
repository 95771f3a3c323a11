"""Options of `dtk diagnose` that belong together, and what a path may be."""

import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.evidence.limits import Limits
from dtk.commands.diagnose import find
from dtk.commands.main import main, make_parser
from dtk.errors import DtkError
from tests.patience import stretched


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no PATH is given - "),
        (["nowhere"], "there is no run "),
        (["--json", "--format", "dot", "."], "--json and --format dot contradict each other - give one of them"),
        (["--verify-fix", "--json", "."], "--verify-fix prints a comparison for people: and --json and --format print"),
        (["--verify-fix", "--format", "markdown", "."], "--verify-fix prints a comparison for people"),
        (["--format", "pdf", "."], "argument --format: invalid choice: 'pdf'"),
        (["--limit-scale", "0", "."], "argument --limit-scale: '0' is not a number above 0"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"dtk: {message}") and captured.out == ""


def test_a_path_a_run_and_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunPaths(tmp_path / "runs" / "20260101-a")
    write_json(run.status, Status(state="finished", started="2026-01-01T00:00:00+00:00"))
    assert find(str(tmp_path)) == tmp_path
    assert find("last") == find("20260101") == Path("runs/20260101-a")
    for name in ("", "20990101"):
        with pytest.raises(DtkError) as caught:
            find(name)
        assert "give a path, a run id or last" in caught.value.fix


LOG = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\nKeyError: 5\n'
NOT_NEEDED = [
    "asyncio",
    "concurrent.futures",
    "email",
    "hashlib",
    "http.client",
    "importlib.metadata",
    "multiprocessing",
    "ssl",
    "subprocess",
    "torch",
    "urllib.request",
    "dtk.commands.attach",
    "dtk.commands.ls",
    "diagnostics.report.html",
    "diagnostics.report.tree_formats",
]


def test_a_small_log_imports_what_it_needs(tmp_path: Path) -> None:
    """The start is most of such a diagnosis; what is listed took a third of it."""
    (tmp_path / "train.log").write_text(LOG, encoding="utf-8")
    code = f"import sys\nfrom dtk.commands.main import main\nmain(['diagnose', {str(tmp_path)!r}])\n"
    code += f"print([name for name in {NOT_NEEDED!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=stretched(60), check=True
    )
    assert done.stdout.splitlines()[-1] == "[]" and "KeyError" in done.stdout


def test_an_html_option_without_a_file_leaves_the_path_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "train.log").write_text(LOG, encoding="utf-8")
    main(["diagnose", "--html", "left"])
    assert (tmp_path / "dtk-report.html").is_file() and "dtk-report.html" in capsys.readouterr().out


def test_the_help_names_the_limits_as_they_are() -> None:
    _, commands = make_parser()
    text = " ".join(commands.choices["diagnose"].format_help().split())
    limits = Limits()
    assert f"{limits.whole_bytes >> 20} MiB for a dump" in text and f"{limits.files:,} files" in text
    assert f"{limits.spans:,} device events" in text and "{w" not in text
