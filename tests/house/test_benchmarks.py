"""Every script of benchmarks/ says in `--help` what it measures; the arithmetic beside other analysers is right."""

import argparse
import ast
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks import analysers

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path.stem
    for path in (ROOT / "benchmarks").glob("*.py")
    if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_says_what_a_script_measures(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    monkeypatch.setattr(argparse.HelpFormatter, "_fill_text", lambda self, text, width, indent: text)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = ROOT / "benchmarks" / f"{name}.py"
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    about = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    assert about.splitlines()[0] in capsys.readouterr().out


def test_arithmetic_beside_other_analysers() -> None:
    kernels = {"communication": [(10.0, 30.0)], "compute": [(0.0, 15.0), (12.0, 20.0)]}
    figures = analysers.arithmetic(kernels, [(25.0, 28.0), (35.0, 40.0)], [(0.0, 25.0), (25.0, 50.0)])
    assert figures == pytest.approx({"overlap": 50.0, "exposed": 17.5, "idle": 12.5, "idle_in_steps": 40.0})
    assert analysers.arithmetic({"communication": [], "compute": []}, [], []) == {}


def test_analyser_that_is_not_installed_is_skipped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    analysers.table(tmp_path, {}, [sys.executable])
    printed = capsys.readouterr()
    assert "nsys-ai: skipped: not installed" in printed.err and "nsys-ai" not in printed.out
