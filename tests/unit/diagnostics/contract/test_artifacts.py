"""The run folder: where each record lies, and what is read back of what was written."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import (
    CHECKPOINT_INFO,
    SCHEMA_VERSION,
    Failure,
    Heartbeat,
    NewerSchemaError,
    RunPaths,
    Status,
    Verdict,
    complete_checkpoints,
    read_heartbeat,
    read_status,
    read_verdict,
    write_json,
)

PATHS = RunPaths(Path("run"))
VERDICT = Verdict(kind="stall", reason="nothing moves", culprits=[2], victims=[0, 1, 3], step=7, region="backward")


def test_the_layout_of_a_run_folder() -> None:
    places = {
        "manifest.json": PATHS.manifest,
        "status.json": PATHS.status,
        "metrics.jsonl": PATHS.metrics,
        "events/rank_00003.jsonl": PATHS.events(3),
        "heartbeat/rank_00003.json": PATHS.heartbeat(3),
        "start/attempt_1/rank_00003.json": PATHS.start(1, 3),
        "start/asked": PATHS.question,
        "flight/rank_00003.pickle": PATHS.flight(3),
        "flight/rank_00003.blackbox.json": PATHS.black_box(3),
        "flight/rank_00003.ring": PATHS.ring(3),
        "flight/watchdog_rank_": PATHS.watchdog_prefix,
        "traces/rank_00003.json.gz": PATHS.trace(3),
        "memory/rank_00003.snapshot.pickle": PATHS.memory_snapshot(3),
        "telemetry/node_00001.jsonl": PATHS.telemetry(1),
        "logs/attempt_0/rank_00003/error.json": PATHS.error(0, 3),
        "logs/attempt_0/watch.json": PATHS.verdict(0),
        "checkpoints/step_00001000": PATHS.checkpoint(1000),
    }
    assert {name: path.relative_to("run").as_posix() for name, path in places.items()} == {
        name: name for name in places
    }


def test_no_two_records_share_a_place() -> None:
    names = [name for name in vars(RunPaths) if not name.startswith("_") and name != "root"]
    values = [getattr(PATHS, name) for name in names]
    paths = [value if isinstance(value, Path) else value(*_numbers(name)) for name, value in zip(names, values)]
    assert len(set(paths)) == len(names) > 25 and all(path.parts[0] == "run" for path in paths)
    assert len({PATHS.events(rank) for rank in range(100)}) == 100


def _numbers(name: str) -> tuple[int, ...]:
    return (0, 3) if name in ("start", "logs", "error", "pauses") else (3,)


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    failure = Failure(rank=1, reason="ValueError: bad batch", step=3, exit_code=1, victims=[0])
    status = Status(state="failed", attempt=2, exit_code=1, step=2, failure=failure)
    for record in (status, replace(status, failure=None)):
        write_json(tmp_path / "a" / "status.json", record)
        assert read_status(tmp_path / "a" / "status.json") == record
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["status.json"], "nothing is left beside it"


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([], ValueError),
        ({"attempt": 1}, ValueError),
        ({"state": "failed", "schema_version": SCHEMA_VERSION + 1}, NewerSchemaError),
    ],
)
def test_what_is_no_status_is_refused(tmp_path: Path, value: object, error: type[ValueError]) -> None:
    (tmp_path / "status.json").write_text(json.dumps(value))
    with pytest.raises(error):
        read_status(tmp_path / "status.json")


def test_keys_that_a_later_version_adds_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"state": "running", "mood": "good"}))
    assert read_status(tmp_path / "status.json") == Status(state="running")
    (tmp_path / "watch.json").write_text(json.dumps({**asdict(VERDICT), "mood": "good"}))
    assert read_verdict(tmp_path / "watch.json") == VERDICT


def test_secrets_are_masked_when_a_record_is_written(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"environment": {"WANDB_API_KEY": "0123456789abcdef", "RANK": "3"}})
    assert json.loads((tmp_path / "manifest.json").read_text()) == {
        "environment": {"WANDB_API_KEY": "***", "RANK": "3"}
    }


@pytest.mark.parametrize(("culprits", "rank"), [([2], 2), ([], -1), ([1, 2], -1)])
def test_a_verdict_blames_one_rank_or_none(culprits: list[int], rank: int) -> None:
    failure = replace(VERDICT, culprits=culprits).failure()
    assert (failure.rank, failure.step, failure.region, failure.victims) == (rank, 7, "backward", [0, 1, 3])


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "stall"}', "{"])
def test_a_verdict_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    assert read_verdict(tmp_path / "watch.json") is None
    (tmp_path / "watch.json").write_text(content)
    assert read_verdict(tmp_path / "watch.json") is None


def test_a_checkpoint_counts_when_it_is_complete(tmp_path: Path) -> None:
    for step in (20, 1000, 10):
        folder = RunPaths(tmp_path).checkpoint(step)
        folder.mkdir(parents=True)
        (folder / CHECKPOINT_INFO).write_text("{}")
    (tmp_path / "checkpoints" / "step_00000030").mkdir()
    (tmp_path / "checkpoints" / ".partial_step_40").mkdir()
    assert [folder.name for folder in complete_checkpoints(RunPaths(tmp_path))] == [
        "step_00000010", "step_00000020", "step_00001000"
    ]  # fmt: skip


def test_a_heartbeat_that_is_being_rewritten_is_not_taken_for_whole(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.json"
    beat = {"step": 3, "region": None, "time_s": 5.0, "pid": 7, "host": "node0", "attempt": 0}
    assert read_heartbeat(path) is None
    path.write_text(json.dumps({**beat, "beat": 4, "beat_end": 4}).ljust(512))
    assert read_heartbeat(path) == Heartbeat(**beat)  # type: ignore[arg-type]
    for torn in (json.dumps({**beat, "beat": 5, "beat_end": 4}), json.dumps({"beat": 1, "beat_end": 1}), "{", "[]"):
        path.write_text(torn)
        assert read_heartbeat(path) is None
