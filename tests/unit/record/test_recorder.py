import json
import threading
import time

import pytest
import torch

from diagnostics.contract.artifacts import read_heartbeat
from dtk.parallel.regions import communication, observed, region
from dtk.record.recorder import Recorder
from tests.work import calls_in

CPU = torch.device("cpu")

FULL_DISK = """
import json, re, resource, sys, time
from pathlib import Path
import torch
from diagnostics.contract.artifacts import RunPaths
from dtk.config.schema import RecordConfig
from dtk.record.recorder import Recorder
from dtk.parallel.regions import communication, region
sys.path.insert(0, sys.argv[2])
from conftest import make_config
from tests.work import calls_in
config = make_config.__wrapped__()(level=sys.argv[3], telemetry_every_s=0.05, black_box_every_s=0.05)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), hard))
recorder = Recorder(config, RunPaths(Path(sys.argv[1])), 0, 0, 0, 1, 0, torch.device("cpu"))
recorder.start()
def writes():
    # Of this thread alone: files are for others to write.
    return int(re.search("syscw: ([0-9]+)", open("/proc/thread-self/io").read())[1])
def one_step(step):
    recorder.begin_step(step)
    with region("forward"), communication("all_reduce", 8, "dp"):
        pass
    recorder.metrics({"step": step, "loss": 1.0})
calls, written = [], 0
for step in range(300):
    before = writes()
    made = calls_in(lambda: one_step(step))[1]
    if step not in (2, 3, 4, 5):  # The profiler starts and stops here, and writes its trace.
        calls.append(made)
        written += writes() - before
    time.sleep(0.001)
recorder.summary({"figures": {"loss": 1.0}, "definitions": {}})
recorder.failed(ValueError("x"))
recorder.close()
print(json.dumps({"calls": max(calls), "written": written}))
"""


def make(config, paths, rank=0, local_rank=0):
    return Recorder(config, paths, rank, local_rank, 0, 2, 0, CPU)


def train(recorder, steps=6):
    for step in range(steps):
        recorder.begin_step(step)
        with region("forward"):
            torch.ones(4).sum()
        with region("backward"), communication("all_reduce", 16, "dp"):
            pass
        recorder.metrics({"step": step + 1, "loss": 1.0 / (step + 1)})


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def files(paths):
    return sorted(str(file.relative_to(paths.root)) for file in paths.root.rglob("*") if file.is_file())


def test_off_writes_and_installs_nothing(paths, make_config):
    paths.root.mkdir()
    threads = threading.active_count()
    recorder = make(make_config("off"), paths)
    recorder.start()
    assert not observed()
    assert region("a") is region("b"), "one shared null context"
    train(recorder)
    recorder.event("first_step", step=1)
    recorder.summary({"figures": {}})
    recorder.failed(ValueError("x"))
    assert threading.active_count() == threads
    recorder.close()
    assert files(paths) == []


def test_light_leaves_what_a_diagnosis_needs(paths, make_config):
    recorder = make(make_config("light", telemetry_every_s=0.05), paths)
    recorder.start()
    train(recorder)
    recorder.event("checkpoint_end", step=6)
    recorder.summary({"figures": {"loss": 0.5}, "definitions": {"loss": "..."}})
    assert read_heartbeat(paths.heartbeat(0)).step == 5
    time.sleep(0.3)
    recorder.close()
    assert files(paths) == [
        "events/rank_00000.jsonl",
        "flight/rank_00000.blackbox.json",
        "flight/rank_00000.ring",
        "heartbeat/rank_00000.json",
        "metrics.jsonl",
        "summary.json",
        "telemetry/node_00000.jsonl",
    ]
    assert [record["step"] for record in lines(paths.metrics)] == [1, 2, 3, 4, 5, 6]
    assert [event["name"] for event in lines(paths.events(0))] == ["start", "checkpoint_end", "end"]
    assert json.loads(paths.summary.read_text())["figures"] == {"loss": 0.5}
    assert read_heartbeat(paths.heartbeat(0)).region == "end"
    assert not observed()


def test_full_adds_spans_trace_and_memory(paths, make_config):
    recorder = make(make_config("full", profile_start=2, profile_steps=1), paths)
    recorder.start()
    train(recorder)
    recorder.close()
    spans = [event for event in lines(paths.events(0)) if event["kind"] == "span"]
    assert len(spans) == 6 * 3
    reduction = next(span for span in spans if span.get("op"))
    assert (reduction["op"], reduction["size_bytes"], reduction["group"], reduction["step"]) == (
        "all_reduce",
        16,
        "dp",
        0,
    )
    assert paths.trace(0).exists()
    assert [record["step"] for record in lines(paths.memory(0))] == [0, 1, 2, 3, 4, 5]


def test_only_rank_0_writes_metrics_and_only_local_rank_0_samples(paths, make_config):
    recorder = make(make_config("light", telemetry_every_s=0.05), paths, rank=1, local_rank=1)
    recorder.start()
    train(recorder)
    recorder.summary({"figures": {}})
    time.sleep(0.2)
    recorder.close()
    assert files(paths) == [
        "events/rank_00001.jsonl",
        "flight/rank_00001.blackbox.json",
        "flight/rank_00001.ring",
        "heartbeat/rank_00001.json",
    ]


def test_an_event_says_when_where_and_in_which_attempt(paths, make_config):
    recorder = Recorder(make_config(), paths, 0, 0, 0, 1, 2, CPU)
    recorder.start()
    recorder.event("evaluation", loss=2.0, rank=7)
    recorder.close()
    (record,) = (event for event in lines(paths.events(0)) if event["name"] == "evaluation")
    assert record.pop("time_s") > 1.7e9
    assert record == {"kind": "event", "name": "evaluation", "rank": 7, "attempt": 2, "loss": 2.0}, "fields go before"


def test_a_failure_leaves_stacks_an_event_and_its_region(paths, make_config):
    recorder = make(make_config("light"), paths)
    recorder.start()
    try:
        recorder.begin_step(3)
        with region("backward"):
            raise ValueError("bad batch")
    except ValueError as error:
        recorder.failed(error)
        recorder.close()
    assert "test_recorder.py" in paths.stacks(0).read_text()
    failure = next(event for event in lines(paths.events(0)) if event["name"] == "failure")
    assert (failure["type"], failure["message"]) == ("ValueError", "bad batch")
    beat = read_heartbeat(paths.heartbeat(0))
    assert beat.step == 3
    assert paths.black_box(0).exists()


@pytest.mark.timeout(100)
@pytest.mark.parametrize(("level", "limit_bytes"), [("light", 0), ("full", 700)])
def test_a_full_disk_neither_stops_nor_slows(paths, child, level, limit_bytes):
    process = child(FULL_DISK, paths.root, __file__.rsplit("/", 1)[0], level, limit_bytes)
    output, errors = process.communicate(timeout=80)
    assert process.returncode == 0, errors
    lines = [line for line in errors.splitlines() if line.startswith("dtk: ")]
    assert any(line.startswith("dtk: metrics") or "metrics.jsonl" in line for line in lines)
    topics = [line.split(": ")[1] for line in lines]
    assert len(topics) == len(set(topics)), "once per topic"
    measured = json.loads(output)
    assert measured["calls"] < 400, "functions that the training thread calls for a step: it tries nothing again"
    assert measured["written"] == 0, "write calls of the training thread"


def test_a_read_only_folder_does_not_stop_a_run(tmp_path, paths, make_config, capfd):
    paths.root.write_text("a file where the folder should be")
    recorder = make(make_config("light"), paths)
    recorder.start()
    train(recorder)
    recorder.failed(ValueError("x"))
    recorder.close()
    assert capfd.readouterr().err.count("dtk: metrics") <= 1


def test_costs_on_the_training_thread(paths, make_config):
    """Counted in functions that are called: 0.1 us each, so a few of them are nothing beside a step."""
    recorder = make(make_config("light"), paths)
    recorder.start()
    recorder.begin_step(0)

    def one_region():
        with region("forward"):
            pass

    one_region()  # Its name is known from here on.
    assert calls_in(one_region)[1] < 60
    assert calls_in(lambda: recorder.begin_step(1))[1] < 60
    assert calls_in(lambda: recorder.metrics({"step": 1, "loss": 1.0}))[1] < 80
    recorder.close()
