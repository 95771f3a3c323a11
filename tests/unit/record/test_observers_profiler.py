import gzip
import json

import torch

from dtk.parallel.regions import observe, region
from dtk.record.guard import flush_reports
from dtk.record.observers import ProfilerMarks, ProfilerWindow


def train(window, steps, first=0):
    observe([ProfilerMarks()])
    layer = torch.nn.Linear(4, 4)
    for step in range(first, first + steps):
        window.begin_step(step)
        with region("forward"):
            layer(torch.ones(2, 4)).sum()


def trace_of(path):
    with gzip.open(path) as file:
        return json.load(file)


def test_the_window_holds_its_steps_and_no_others(tmp_path):
    path = tmp_path / "traces" / "rank_00002.json.gz"
    window = ProfilerWindow(path, 2, torch.device("cpu"), start=4, steps=2)
    train(window, steps=8, first=100)
    window.close(30)
    trace = trace_of(path)
    spans = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    assert sorted(set(spans)) == ["ProfilerStep#103", "ProfilerStep#104", "forward"]
    assert spans.count("forward") == 2
    linear = next(event for event in trace["traceEvents"] if event["name"] == "aten::linear")
    assert linear["args"]["Input Dims"][0] == [2, 4]
    assert trace["dtk"]["rank"] == 2 and trace["dtk"]["held_bytes"] >= 4 * (4 * 4 + 4)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_stacks_name_the_functions(tmp_path):
    for stacks in (False, True):
        path = tmp_path / f"{stacks}.json.gz"
        window = ProfilerWindow(path, 0, torch.device("cpu"), start=1, steps=1, stacks=stacks)
        train(window, steps=3)
        window.close(30)
        functions = [event["name"] for event in trace_of(path)["traceEvents"] if event.get("cat") == "python_function"]
        assert any("nn/modules/linear.py" in name for name in functions) == stacks


def test_a_run_that_ends_inside_the_window_still_leaves_a_trace(tmp_path):
    path = tmp_path / "rank_00000.json.gz"
    window = ProfilerWindow(path, 0, torch.device("cpu"), start=2, steps=5)
    train(window, steps=3)
    window.close(30)
    assert any(event["name"] == "ProfilerStep#2" for event in trace_of(path)["traceEvents"])


def test_a_trace_that_cannot_be_written_is_reported(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    window = ProfilerWindow(tmp_path / "file" / "x.json.gz", 0, torch.device("cpu"), start=1, steps=1)
    train(window, steps=2)
    window.close(30)
    flush_reports()
    assert "dtk: profiler: " in capfd.readouterr().err
