"""`dtk ls`, `dtk show` and `last` as one types them: filters, JSON, hostile folders, damaged runs, ten thousand."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.report import lines
from diagnostics.report.runs import listing
from diagnostics.runs.find import FAILED, STATES, list_runs
from dtk.commands.main import main
from tests.work import calls_in


def moment(ago_s: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat(timespec="seconds")


def make(folder: Path, name: str, state: Any, ago_s: float = 60, loss: float | None = None, **more: Any) -> Path:
    paths = RunPaths(folder / name)
    ended_s = more.pop("ended_ago_s", ago_s)
    write_json(paths.status, Status(state=state, started=moment(ago_s), updated=moment(ended_s), **more))
    if loss is not None:
        write_json(paths.summary, {"figures": {"loss": loss, "tokens_per_s": 1000 / loss}})
    return paths.root


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    make(folder, "a-new", "finished", 10, loss=3.0, step=5)
    make(folder, "b-hung", "hung", 3600, step=9)
    make(folder, "c-best", "finished", 2 * 86400, loss=1.5, step=7)
    make(folder, "d-old", "failed", 9 * 86400, ended_ago_s=3600)
    return folder


def ids(capsys: Any) -> list[str]:
    return [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["a-new", "b-hung", "c-best", "d-old"]),
        (["--state", "finished"], ["a-new", "c-best"]),
        (["--state", "hung,failed"], ["b-hung", "d-old"]),
        (["--failed"], ["b-hung", "d-old"]),
        (["--state", "hung", "--state", "finished", "--limit", "3"], ["a-new", "b-hung", "c-best"]),
        (["--older-than", "30m"], ["b-hung", "c-best", "d-old"]),
        (["--older-than", "7d"], []),
        (["--sort", "loss", "-n", "2"], ["c-best", "a-new"]),
        (["--sort", "tokens/s", "--limit", "1"], ["c-best"]),
        (["--sort", "steps", "--limit", "2"], ["b-hung", "c-best"]),
        (["--reverse"], ["d-old", "c-best", "b-hung", "a-new"]),
    ],
)
def test_filters_and_order(runs: Path, capsys: Any, options: list[str], expected: list[str]) -> None:
    assert main(["ls", *options]) == 0
    assert ids(capsys) == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--state", "fialed"], "'fialed' is not a state; did you mean failed?"),
        (["--state", ","], "no state is given"),
        (["--failed", "--state", "finished"], "both name states: --failed is --state failed,hung,oom,lost"),
        (["--older-than", "7"], "'7' is not a duration; write 90s, 5m, 3h, 7d or 2w"),
        (["--limit", "0"], "'0' is not a whole number from 1 to"),
        (["--sort", "size"], "invalid choice: 'size'"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_line(runs: Path, capsys: Any, options: list[str], said: str) -> None:
    assert main(["ls", *options]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_json_is_a_list_and_nothing_else(runs: Path, capsys: Any) -> None:
    assert main(["ls", "--json", "--limit", "1"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert (only["id"], only["path"], only["state"], only["loss"], only["step"]) == (
        "a-new",
        "runs/a-new",
        "finished",
        3.0,
        5,
    )
    assert main(["ls", "--json", "--state", "oom"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["ls", "--json", "elsewhere"]) == 2


def test_no_run_like_that(runs: Path, capsys: Any) -> None:
    assert main(["ls", "--state", "oom"]) == 0
    assert capsys.readouterr().err == "none of the 4 runs in runs matches\n"


def test_last_is_the_newest_and_a_folder_of_that_name_comes_first(runs: Path, capsys: Any) -> None:
    assert main(["show", "last"]) == 0
    assert capsys.readouterr().out.startswith("run     runs/a-new\n")
    make(runs, "last", "preempted", 10**6)
    assert main(["show", "last"]) == 0
    assert capsys.readouterr().out.startswith("run     runs/last\n")


def test_a_run_of_a_newer_dtk_is_a_line_in_the_list_and_one_line_alone(runs: Path, capsys: Any) -> None:
    make(runs, "e-newer", "finished", schema_version=99)
    before = (runs / "e-newer" / "status.json").read_bytes()
    assert main(["ls", "--state", "newer"]) == 0
    assert ids(capsys) == ["e-newer"]
    for words in (["show", "e-newer"], ["rerun", "e-newer"], ["rm", "--yes", "e-newer"]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert "runs/e-newer was written by a newer dtk: status.json: it was written by a newer dtk (schema 99)" in err
        assert err.count("\n") == 1
    assert (runs / "e-newer" / "status.json").read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        "line\nbreak",
        "\x1b[31mred\x1b[0m",
        "x" * 255,
        "tab\there",
        "\u202eright",
        b"\xff\xfe".decode("utf-8", "surrogateescape"),
    ],
)
def test_a_hostile_name_spoils_no_other_line(runs: Path, capsys: Any, name: str) -> None:
    try:
        make(runs, name, "failed", step=1)
    except OSError as error:
        pytest.skip(f"this file system takes no such name: {error}")
    assert main(["ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(character.isprintable() for line in lines for character in line)
    assert max(map(len, (line for line in lines if "xxx" not in line))) < 120
    assert [line.split()[0] for line in lines if " finished " in line] == ["a-new", "c-best"]
    assert main(["ls", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out.encode("utf-8", "surrogateescape"))) == 5


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("status.json", '{"state": "finished", "step": 1e400, "schema_version": 1}'),
        ("status.json", '{"state": "finished", "step": ' + "9" * 4000 + "}"),
        ("status.json", '{"state": "no such state"}'),
        ("status.json", '{"state": ["x"]}'),
        ("status.json", '{"state": "finished", "schema_version": "new"}'),
        ("status.json", " " * (5 << 20)),
        ("summary.json", '{"figures": {"loss": 1e400, "tokens_per_s": -1e999}}'),
        ("summary.json", '{"figures": {"loss": NaN, "tokens_per_s": ' + "9" * 4000 + "}}"),
        ("summary.json", "[" * 100_000),
        ("metrics.jsonl", '{"step": Infinity, "loss": ' + "9" * 400 + "}\n"),
        ("manifest.json", '{"host": 3, "pid": "x"}'),
    ],
)
def test_absurd_values_never_break_the_listing(tmp_path: Path, capsys: Any, file: str, content: str) -> None:
    make(tmp_path, "fine", "finished", loss=2.0)
    run = make(tmp_path, "odd", "running" if file == "manifest.json" else "finished")
    (run / file).write_text(content)
    for words in (["ls", str(tmp_path)], ["ls", str(tmp_path), "--json"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "odd" in out and "fine" in out and len(out) < 2000
    assert main(["show", str(run)]) in (0, 2)


@pytest.mark.timeout(60)
def test_what_lies_in_the_place_of_a_file_does_not_stop_the_listing(tmp_path: Path) -> None:
    os.mkfifo(make(tmp_path, "pipe", "finished") / "summary.json")
    folder = make(tmp_path, "folder", "finished")
    (folder / "status.json").unlink()
    (folder / "status.json").mkdir()
    device = make(tmp_path, "device", "finished")
    (device / "status.json").unlink()
    (device / "status.json").symlink_to("/dev/zero")
    assert {run.id: run.state for run in list_runs(tmp_path)} == {
        "pipe": "finished",
        "folder": "damaged",
        "device": "damaged",
    }


def test_a_narrow_terminal_loses_columns_not_names(runs: Path) -> None:
    result = list_runs(runs)
    wide, narrow = (lines.render(listing(result), columns=columns, colour=False) for columns in (80, 28))
    assert "tokens/s" in wide and "tokens/s" not in narrow
    assert max(map(len, narrow.splitlines())) <= 28
    assert [line.split()[0] for line in narrow.splitlines()[1:]] == [run.id for run in result]


def test_states_that_can_be_asked_for_are_those_there_are() -> None:
    assert set(FAILED) < set(STATES) and {"running", "finished", "lost", "damaged", "newer"} < set(STATES)


def test_a_thousand_runs_take_little_work_each(tmp_path: Path) -> None:
    """Reading, not start-up; benchmarks/list_runs.py has the figure for ten thousand, 0.05 ms each."""
    for i in range(1000):
        folder = tmp_path / f"run-{i:05d}"
        folder.mkdir()
        (folder / "status.json").write_text('{"state": "finished", "step": 5, "started": "2026-01-01T00:00:00+00:00"}')
        (folder / "summary.json").write_text('{"figures": {"loss": 2.0, "tokens_per_s": 9.0}}')
    text, calls = calls_in(lambda: lines.render(listing(list_runs(tmp_path)), columns=None, colour=False))
    assert calls < 300_000
    assert text.count("\n") == 1001
