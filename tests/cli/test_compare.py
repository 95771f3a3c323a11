"""`dtk compare` as typed: exit codes, forms, names of runs; and what real runs record for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dtk.commands.main import main
from tests.cli.command import TINY, environment, metrics, run
from tests.unit.compare.folders import GATHERED, make_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    change = {"strategy": {"name": "fsdp"}}
    folder = tmp_path / "runs"
    return [make_run(folder, "aa"), make_run(folder, "bb", change=change, times_s=0.2, traffic=GATHERED)]


def test_comparable_runs_by_id_beginning_and_folder(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for names in (["aa", "bb"], ["a", "b"], [str(path) for path in runs], ["runs"]):
        assert main(["compare", *names]) == 0
        out = capsys.readouterr().out
        assert out.startswith("comparable: the runs did the same work")
        assert "fsdp is 2.00x slower than ddp" in out
        assert "\x1b" not in out


def test_json_is_one_object_and_nothing_else(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "aa", "bb", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["schema"] == "dtk.comparison/1"
    assert output["comparable"] is True
    speed = next(figure for figure in output["figures"] if figure["key"] == "step_time_s")
    assert [variant["median"] for variant in speed["variants"]] == [0.1, 0.2]
    assert speed["variants"][1]["ratio"]["median"] == 2.0


def test_markdown_and_the_page(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "aa", "bb", "--markdown", "--html", "page.html"]) == 0
    assert capsys.readouterr().out.startswith("# comparable")
    assert Path("page.html").read_text().startswith("<!doctype html>")
    assert main(["compare", "--html", "runs"]) == 0
    assert "page: dtk-comparison.html" in capsys.readouterr().out
    assert main(["compare", "aa", "bb", "--html", "absent/page.html"]) == 2


def test_runs_that_did_other_work_are_exit_1_without_a_speed(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(runs[0].parent, "cc", parity={"initial_weights_hash": "0"}, change={"seed": 7}, times_s=0.2)
    assert main(["compare", "aa", "cc"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("not comparable: initial weights (hash)")
    assert "slower" not in out


def test_one_run_with_figures_is_exit_1_and_repeats_are_exit_0(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(runs[0].parent, "ff", change={"strategy": {"name": "zero1"}}, state="failed", times_s=[])
    assert main(["compare", "aa", "ff"]) == 1
    assert capsys.readouterr().out.startswith("only ddp has figures: there is nothing to compare it with")
    assert main(["compare", "aa", "ff", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["comparable"] is False
    make_run(runs[0].parent, "a2")
    assert main(["compare", "aa", "a2"]) == 0
    assert capsys.readouterr().out.startswith("one variant, 2 repeats of ddp")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "at least two runs"),
        (["aa"], "at least two runs"),
        (["aa", "absent"], 'no run "absent"'),
        (["aa", "bb", "--warmup", "x"], "is not a whole number"),
        (["aa", "bb", "--loss-tolerance", "nan"], "is not a number above 0"),
        (["aa", "bb", "--json", "--markdown"], "not allowed with"),
        (["aa", "dd"], "newer dtk"),
        (["aa", "ee"], "cannot be compared"),
        (["aa", "gg"], "metrics.jsonl: not a regular file"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(
    runs: list[Path], capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    newer, damaged = make_run(runs[0].parent, "dd"), make_run(runs[0].parent, "ee")
    status = json.loads((newer / "status.json").read_text())
    (newer / "status.json").write_text(json.dumps({**status, "schema_version": 99}))
    (damaged / "config.yaml").write_text("a: [")
    pipe = make_run(runs[0].parent, "gg") / "metrics.jsonl"
    pipe.unlink()
    os.mkfifo(pipe)
    assert main(["compare", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert captured.err.count("\n") == 1


def test_it_starts_without_torch(runs: list[Path]) -> None:
    script = (
        "import sys; from dtk.commands.main import main\n"
        "main(['compare', 'aa', 'bb']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(), cwd=runs[0].parent.parent
    )
    assert done.returncode == 0, done.stderr
    assert "comparable" in done.stdout


@pytest.mark.extended
@pytest.mark.timeout(240)
def test_real_runs_of_two_strategies_are_comparable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = [*TINY, "train.steps=5", "train.evaluate_every=-1", "checkpoint=off"]
    for strategy in ("ddp", "fsdp"):
        done = run(tmp_path, f"strategy={strategy}", *job, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
    assert main(["compare", str(tmp_path), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert {check["key"]: check["status"] for check in output["parity"]} == dict.fromkeys(
        (check["key"] for check in output["parity"]), "same"
    )
    ddp, fsdp = output["variants"]
    assert [collective["op"] for collective in ddp["collectives"]] == ["all_reduce"]
    assert "all_gather" in [collective["op"] for collective in fsdp["collectives"]]
    assert all(len(line["samples_hash"]) == 16 for line in metrics(Path(ddp["runs"][0]["path"])))
