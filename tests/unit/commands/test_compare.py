"""`dtk compare`: which folders are compared, where the answer goes, and the exit code."""

import json
from pathlib import Path

import pytest

from dtk.commands.main import main
from tests.unit.compare.folders import make_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, strategy, times_s in (("aa", "ddp", 0.1), ("bb", "fsdp", 0.2)):
        make_run(tmp_path / "runs", name, times_s=times_s, change={"strategy": {"name": strategy}})
    return tmp_path / "runs"


def test_a_folder_stands_for_its_runs_and_a_baseline_comes_first(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "runs", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main(["compare", "aa", "--baseline", "bb", "--json"]) == 0
    swapped = json.loads(capsys.readouterr().out)
    order = [[side["runs"][0]["id"] for side in result["variants"]] for result in (whole, swapped)]
    assert order == [["aa", "bb"], ["bb", "aa"]]


@pytest.mark.parametrize("pattern", ["b*", "runs/b*", "{}/runs/b*"])
def test_a_quoted_pattern_is_expanded(pattern: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "[a]a", "--baseline", pattern.format(runs.parent), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [side["runs"][0]["id"] for side in output["variants"]] == ["bb", "aa"]
    assert main(["compare", "aa", "c*"]) == 2 and 'no run "c*"' in capsys.readouterr().err


@pytest.mark.parametrize(("limit", "code"), [("slower=50%", 1), ("slower=150%", 0)])
def test_a_limit_that_is_passed_fails(runs: Path, limit: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "aa", "bb", "--fail-if", limit]) == code
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["FAIL" if code else "ok", f"{limit}:"]


def test_html_before_a_folder_names_the_usual_page(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--html", "runs"]) == 0
    assert capsys.readouterr().out.endswith("page: dtk-comparison.html\n") and Path("dtk-comparison.html").is_file()
    assert main(["compare", "aa", "bb", "--fail-if", "nonsense"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
