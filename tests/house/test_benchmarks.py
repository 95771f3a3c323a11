"""The scripts of benchmarks/ say what they measure: every one answers `--help` with its docstring."""

import argparse
import ast
import runpy
import sys
from pathlib import Path

import pytest

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
