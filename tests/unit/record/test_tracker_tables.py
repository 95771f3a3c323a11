"""What a tracker is given at the end of a run, out of its folder."""

import json
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import CHECKPOINT_INFO, Failure, RunPaths, Status, write_json
from dtk.record import tracker_tables
from dtk.record.tracker_tables import diagnosis, ended, last_checkpoint, tables


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    figures = {"step_time_s": 0.5, "peak_memory_bytes_per_rank": [100, 90]}
    write_json(paths.summary, {"figures": figures})
    write_json(
        paths.plan, {"peak_bytes": 80, "time": {"step_s": 0.4}, "traffic": [{"size_bytes": 7}, {"size_bytes": 8}]}
    )
    write_json(paths.parity, {"definitions": {"master_dtype": "of the weights"}, "master_dtype": "float32"})
    return paths


def test_plan_parity_and_memory_are_tables(run: RunPaths) -> None:
    result = tables(run)
    assert result["plan_and_actual"][1] == [
        ["peak memory of rank 0", "peak_memory_bytes", 80.0, None],
        ["step time", "step_time_s", 0.4, 0.5],
        ["communicated per step", "communicated_bytes_per_step", 15.0, None],
    ]
    assert result["parity"][1] == [["master_dtype", "float32", "of the weights"]]
    assert result["memory"] == (("rank", "peak_memory_bytes"), [[0, 100], [1, 90]])
    assert "memory_timeline" not in result, "it is recorded at level full only"


def test_a_long_timeline_is_thinned_to_its_end(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_tables, "TIMELINE_ROWS", 8)
    run.memory(0).parent.mkdir()
    run.memory(0).write_text("".join(f'{{"step": {step}, "rss_bytes": {step}}}\n' for step in range(1, 101)))
    columns, rows = tables(run)["memory_timeline"]
    assert columns == ("step", "rss_bytes") and 8 <= len(rows) < 16
    assert rows[0] == [1, 1] and rows[-1][0] > 90


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"figures": 3, "traffic": [1], "peak_bytes": "x", "time": []}'])
def test_damaged_records_have_no_table(text: str, run: RunPaths) -> None:
    for path in (run.summary, run.plan, run.parity):
        path.write_text(text)
    assert tables(run) == {}


def test_a_run_that_did_not_finish_is_diagnosed(run: RunPaths) -> None:
    failure = Failure(1, "ValueError: bad batch (train.py:12)", 3, "forward")
    write_json(run.status, Status(state="failed", attempt=0, exit_code=1, failure=failure))
    about = {"rank": 1, "attempt": 0, "type": "ValueError", "message": "bad batch", "file": "/a/train.py", "line": 12}
    write_json(run.error(0, 1), {"schema_version": 1, **about, "function": "step", "traceback": "", "time_s": 1.0})
    result = diagnosis(run)
    assert result is not None
    (_, rows), files = result
    assert [(row[0], row[2]) for row in rows] == [("hang.rank_raised", "[1]")], rows
    assert files["report.html"].is_file() and json.loads(files["report.json"].read_text())["root_causes"]


def test_the_status_is_awaited_as_long_as_it_is_running(run: RunPaths) -> None:
    assert ended(run, 0.0) is None
    write_json(run.status, Status(state="running"))
    status = ended(run, 0.3)
    assert status is not None and status.state == "running"


def test_only_files_of_the_last_complete_checkpoint(run: RunPaths, tmp_path: Path) -> None:
    assert last_checkpoint(run) == {}
    for step in (2, 4, 6):
        folder = run.checkpoint(step)
        (folder / "shards").mkdir(parents=True)
        (folder / "shards" / "a").write_text("a")
        if step < 6:
            (folder / CHECKPOINT_INFO).write_text("{}")
    (run.checkpoint(4) / "passwd").symlink_to("/etc/passwd")
    (run.checkpoint(4) / "outside").symlink_to(tmp_path)
    assert sorted(last_checkpoint(run)) == ["step_00000004/checkpoint.json", "step_00000004/shards/a"]
