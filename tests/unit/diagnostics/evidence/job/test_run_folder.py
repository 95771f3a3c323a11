"""The records of a run folder: each counts by itself, and a damaged one is a line."""

import json

import pytest

from diagnostics.contract.artifacts import Failure, RunPaths, Status, write_json
from diagnostics.evidence.job import run_folder
from diagnostics.evidence.job.run_folder import failure_error, is_run, last_attempt, runs_in
from diagnostics.evidence.limits import Limits

STATUS = Status(state="failed", attempt=1)


def make(root, status=STATUS, **texts):
    paths = RunPaths(root)
    root.mkdir(parents=True, exist_ok=True)
    if status is not None:
        write_json(paths.status, status)
    for name, text in texts.items():
        (root / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return root


def read(root):
    problems = []
    return run_folder.read(root, Limits(), problems), [
        (problem.file, problem.what, problem.reason) for problem in problems
    ]


def events(root, rank, *lines):
    (root / "events").mkdir(exist_ok=True)
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (root / "events" / f"rank_{rank:05d}.jsonl").write_text(text, encoding="utf-8")


def event(name, **fields):
    return {"kind": "event", "name": name, "attempt": 1, **fields}


def test_a_run_by_its_status_its_manifest_or_most_of_its_records(tmp_path):
    assert is_run(make(tmp_path / "status"))
    manifest = '{"run_id": "r", "schema_version": 1}'
    assert is_run(make(tmp_path / "manifest", None, manifest__json=manifest))
    damaged = {"status__json": "{", "manifest__json": "{", "config__yaml": ""}
    assert is_run(make(tmp_path / "damaged", None, **damaged))
    assert not is_run(make(tmp_path / "two", None, status__json="{", config__yaml=""))
    assert not is_run(make(tmp_path / "other", None, status__json='{"state": "done"}'))
    assert not is_run(tmp_path / "absent")


def test_a_link_is_no_record(tmp_path):
    make(tmp_path / "run")
    other = make(tmp_path / "other", None)
    (other / "status.json").symlink_to(tmp_path / "run" / "status.json")
    assert not is_run(other)
    evidence, problems = read(other)
    assert evidence.status is None
    assert problems == [("status.json", "damaged: not a status record", "damaged")]


def test_a_status_of_a_newer_dtk_is_not_called_damaged(tmp_path):
    run = make(tmp_path / "run", None, status__json='{"state": "paused", "schema_version": 99}')
    evidence, problems = read(run)
    says = "it was written by a newer dtk (schema 99): upgrade dtk to read it"
    assert evidence.status is None and problems == [("status.json", says, "newer")]


def test_runs_below_a_folder_newest_last(tmp_path):
    for name in ("20260102-run", "20260101-run"):
        make(tmp_path / name)
    make(tmp_path / "notes", None)
    assert runs_in(tmp_path) == ["20260101-run", "20260102-run"]
    assert runs_in(tmp_path / "absent") == []


def test_the_last_attempt_is_the_highest_with_logs(tmp_path):
    for name in ("attempt_0", "attempt_10", "attempt_9", "attempt_x", "attempts"):
        (tmp_path / "logs" / name).mkdir(parents=True)
    assert last_attempt(tmp_path) == 10
    assert last_attempt(tmp_path / "absent") == -1


def test_an_honest_run(tmp_path):
    root = make(tmp_path, config__yaml="strategy: {name: ddp}", manifest__json='{"run_id": "r"}', summary__json="{}")
    events(root, 2, event("start"), event("end", exit_code=0), event("start", attempt=0))
    evidence, problems = read(root)
    assert (evidence.status.state, evidence.attempt) == ("failed", 1)
    assert evidence.get("strategy.name") == "ddp"
    assert evidence.manifest == {"run_id": "r"}
    assert [item["name"] for item in evidence.events[2]] == ["start", "end"], "of the last attempt only"
    assert problems == []


def test_damaged_records_are_lines_and_the_others_count(tmp_path):
    root = make(tmp_path, config__yaml="[", manifest__json="[]", summary__json="", plan__json='{"a": 1}')
    evidence, problems = read(root)
    assert [(file, reason) for file, _, reason in problems] == [
        ("config.yaml", "damaged"), ("manifest.json", "damaged"), ("summary.json", "damaged"),
    ]  # fmt: skip
    assert (evidence.config, evidence.manifest, evidence.plan) == ({}, {}, {"a": 1})
    assert all("\n" not in what and len(what) < 250 for _, what, _ in problems)


@pytest.mark.parametrize(
    ("text", "what", "reason"),
    [
        ('{"schema_version": 99, "state": "failed"}', "newer", "newer"),
        ('{"schema_version": 1, "state": 3, "attempt": 0}', "`$.state`", "damaged"),
        ('{"schema_version": 1, "state": "failed", "reason": 6}', "`$.reason`", "damaged"),
        ('{"schema_version": 1, "state": "failed", "failure": {"rank": 0}}', "`reason`", "damaged"),
        ("[]", "", "damaged"),
        ("\x00", "", "damaged"),
    ],
)
def test_a_status_that_cannot_be_read(tmp_path, text, what, reason):
    evidence, problems = read(make(tmp_path, None, status__json=text))
    assert evidence.status is None
    ((file, said, why),) = problems
    assert (file, why) == ("status.json", reason)
    assert what in said


def test_a_status_that_is_missing_or_goes_on(tmp_path):
    assert read(make(tmp_path / "a", None))[1] == [("status.json", "it is missing: how the run ended is not known", "")]
    running = read(make(tmp_path / "b", Status(state="running")))
    assert running[1] == [("status.json", "the job is still running: these are its records so far", "")]


def test_torn_and_foreign_lines_among_events_are_left_out(tmp_path):
    root = make(tmp_path)
    torn = '{"kind": "event", "name": "ev'
    spans = '{"kind": "span", "name": "\\"kind\\": \\"event\\""}\n["kind", "event"]\n'
    events(root, 0, event("start"), spans, event("end"), torn)
    assert [item["name"] for item in read(root)[0].events[0]] == ["start", "end"]


def test_of_many_events_the_first_and_the_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "MAX_EVENTS", 4)
    root = make(tmp_path)
    events(root, 0, *(event(str(n)) for n in range(9)))
    assert [item["name"] for item in read(root)[0].events[0]] == ["0", "1", "7", "8"]


def test_a_heartbeat_of_other_types_or_sizes_is_none(tmp_path):
    root = make(tmp_path)
    (root / "heartbeat").mkdir()
    beat = {"beat": 1, "step": 3, "region": None, "time_s": 5.0, "pid": 1, "host": "h", "attempt": 0, "beat_end": 1}
    texts = [beat, {**beat, "time_s": "soon"}, {**beat, "step": "x"}, {**beat, "host": "h" * 5000}]
    for rank, value in enumerate(texts):
        (root / "heartbeat" / f"rank_{rank:05d}.json").write_text(json.dumps(value), encoding="utf-8")
    assert {rank: heartbeat.step for rank, heartbeat in read(root)[0].heartbeats.items()} == {0: 3}


def failed(**fields):
    return failure_error(
        Status(state="failed", failure=Failure(**{"rank": 3, "reason": "killed by SIGKILL", **fields}))
    )


def test_the_failure_that_the_launcher_recorded():
    error = failed(exit_code=-9, step=7, region="forward", kind="killed", signal="SIGKILL")
    assert (error.rank, error.signal, error.exit_code, error.step, error.region) == (3, "SIGKILL", -9, 7, "forward")
    assert not error.vanished and failed(kind="killed").vanished
    raised = failed(
        reason="exited with code 3: ValueError: x", kind="raised", type="ValueError", message="x", exit_code=3
    )
    assert (raised.type, raised.message, raised.exit_code) == ("ValueError", "x", 3)
    assert failure_error(None) is None
    assert failure_error(Status(state="failed")) is None
