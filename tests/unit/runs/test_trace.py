import gzip
import json
import shutil
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from diagnostics.evidence.ring import format as layout
from dtk.commands.main import main
from dtk.errors import DtkError
from dtk.runs.trace import PIDS, Merge

STARTED_S = 1_700_000_000.0


def ring(path: Path, rank: int, times_s: list[float], stuck: bool = False) -> None:
    """A rank's calls of all_reduce, 10 ms each; the last one of a stuck rank does not return."""
    texts = ["0", "0-1", "default_pg", "all_reduce", "float32", "SUM", "[[8]]", "train.py:12\tstep", "backward"]
    groups, slots, table = 1, 64, 512
    data = bytearray(layout.file_bytes(groups, slots, table))
    layout.HEADER.pack_into(data, 0, layout.MAGIC, layout.VERSION, rank, 2, 0, 77, groups, slots, table, 100.0, b"node")
    records_at = layout.GROUPS_AT + groups * layout.GROUP.size
    at = table_at = records_at + slots * layout.RECORD.size
    at += layout.TABLE_HEAD.size
    for text in texts:
        layout.TEXT_HEAD.pack_into(data, at, len(text))
        at += layout.TEXT_HEAD.size + len(text)
        data[at - len(text) : at] = text.encode()
    layout.TABLE_HEAD.pack_into(data, table_at, at - table_at)
    layout.GROUP.pack_into(data, layout.GROUPS_AT, 1, 2, 3, 0, len(times_s), len(times_s))
    for number, time_s in enumerate(times_s, 1):
        open_ = stuck and number == len(times_s)
        values = (
            number,
            time_s,
            0.0 if open_ else time_s + 0.01,
            3,
            0,
            8,
            9,
            4,
            0,
            5,
            -1,
            0,
            7,
            7,
            6,
            0,
            number,
            8,
            8,
            99,
        )
        state = layout.STARTED if open_ else layout.FINISHED
        layout.RECORD.pack_into(
            data, records_at + (number - 1) % slots * layout.RECORD.size, *values, state, 0, 0, 0, 0, number
        )
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def lines(path: Path, *records: dict, torn: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + torn)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """Two ranks, of which the second one's clock is 5 s ahead."""
    paths = RunPaths(tmp_path / "runs" / "a")
    write_json(
        paths.status, Status(state="finished", started="2023-11-14T22:13:20+00:00", updated="2023-11-14T22:13:50+00:00")
    )
    for rank in range(2):
        span = {"kind": "span", "name": "forward", "step": 1, "time_s": STARTED_S + 1, "duration_ms": 2.5}
        lines(paths.events(rank), {"kind": "event", "name": "start", "time_s": STARTED_S}, span, torn='{"kind": "sp')
        lines(paths.memory(rank), {"step": 1, "time_s": STARTED_S + 1, "rss_bytes": 1 << 20, "allocated_bytes": None})
        paths.trace(rank).parent.mkdir(exist_ok=True)
        events = [
            {"ph": "M", "name": "process_name", "pid": 77, "ts": 0, "args": {"name": "python"}},
            {"ph": "X", "name": "aten::mm", "pid": 77, "tid": 3, "ts": 2e6, "dur": 10},
            {"ph": "s", "id": 4, "name": "ac2g", "cat": "ac2g", "pid": 77, "tid": 3, "ts": 2e6},
            {"ph": "X", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 1, "dur": 3e6},
        ]
        with gzip.open(paths.trace(rank), "wt") as file:
            json.dump({"schemaVersion": 1, "baseTimeNanoseconds": int(STARTED_S * 1e9), "traceEvents": events}, file)
    sample = {"kind": "sample", "time_s": STARTED_S + 2, "gpu": [{"power_watts": 300.0, "failed": ["x"]}]}
    lines(
        paths.telemetry(0),
        {"kind": "about", "time_s": STARTED_S, "host": "vm"},
        {**sample, "host": {"cpu_percent": 7.0}},
    )
    return paths


def merged(run: RunPaths, name: str = "out.json") -> tuple[Merge, list[dict]]:
    merge, file = Merge(run.root), run.root.parent / name
    merge.write(file)
    return merge, json.loads(file.read_text())["traceEvents"]


def test_regions_memory_telemetry_and_the_profiler_stand_on_tracks_of_their_rank(run):
    merge, events = merged(run)
    assert not merge.problems and merge.ranks == {0, 1} and merge.events == len(events)
    for rank in range(2):
        own = [event for event in events if event["pid"] // PIDS == rank]
        (forward,) = (event for event in own if event["name"] == "forward")
        assert (forward["ph"], forward["ts"], forward["dur"]) == ("X", pytest.approx(1e6), 2500.0)
        (product,) = (event for event in own if event["name"] == "aten::mm")
        assert product["ts"] == pytest.approx(2e6, abs=1) and product["pid"] == rank * PIDS + 1
        assert next(event["id"] for event in own if event["name"] == "ac2g") == (rank + 1 << 32) + 4
        assert [event["args"] for event in own if event["name"] == "memory"] == [{"rss_bytes": 1 << 20}]
        names = [event["args"]["name"] for event in own if event["name"] == "process_name"]
        assert sorted(names) == [f"rank {rank}", f"rank {rank} profiler: Spans", f"rank {rank} profiler: python"]
    counters = {event["name"]: event["args"] for event in events if event["ph"] == "C" and event["pid"] == 0}
    assert counters == {"memory": {"rss_bytes": 1 << 20}, "GPU 0": {"power_watts": 300.0}, "host": {"cpu_percent": 7.0}}


def test_collectives_are_linked_over_ranks_whose_clocks_are_aligned(run):
    ring(run.ring(0), 0, [STARTED_S + 0.1 * i for i in range(30)])
    ring(run.ring(1), 1, [STARTED_S + 5 + 0.1 * i + 0.01 for i in range(30)])
    merge, events = merged(run)
    assert merge.shifts_s[1] == pytest.approx(5, abs=0.1)
    calls = {
        rank: [e for e in events if e["ph"] == "X" and e["pid"] == rank * PIDS and e["tid"] == 1] for rank in range(2)
    }
    assert len(calls[0]) == len(calls[1]) == 30
    assert all(abs(a["ts"] - b["ts"]) < 1e5 for a, b in zip(calls[0], calls[1], strict=True))
    assert calls[0][3]["dur"] == pytest.approx(1e4, abs=1)
    assert calls[0][3]["args"]["call"] == "train.py:12" and calls[0][3]["args"]["position"] == 4
    flows: dict[int, list[tuple[str, float]]] = {}
    for event in events:
        if event.get("cat") == "collective":
            assert isinstance(event["id"], int), "Perfetto drops flows of other ids"
            flows.setdefault(event["id"], []).append((event["ph"], event["ts"]))
    assert len(flows) == 30
    for ends in flows.values():
        assert sorted(phase for phase, _ in ends) == ["f", "s"]
        assert dict(ends)["s"] <= dict(ends)["f"]


def test_a_call_that_never_returned_reaches_to_the_end_of_the_run(run):
    ring(run.ring(0), 0, [STARTED_S + 1 + i for i in range(3)])
    ring(run.ring(1), 1, [STARTED_S + 1 + i for i in range(3)], stuck=True)
    _, events = merged(run)
    (last,) = (
        e for e in events if e["ph"] == "X" and e["pid"] == PIDS and e["tid"] == 1 and e["args"]["position"] == 3
    )
    assert last["dur"] == pytest.approx(27e6, abs=10) and last["args"]["state"] == "started"


def test_a_rank_to_blame_is_marked(run):
    write_json(
        run.status, Status(state="failed", started="2023-11-14T22:13:20+00:00", updated="2023-11-14T22:13:50+00:00")
    )
    write_json(run.error(0, 1), {
        "schema_version": 1, "rank": 1, "attempt": 0, "type": "ValueError", "message": "bad", "file": "train.py",
        "line": 3, "time_s": STARTED_S + 3, "traceback": "ValueError: bad", "user_error": False,
    })  # fmt: skip
    _, events = merged(run)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert "rank 1 - AT FAULT: hang.rank_raised" in names and "rank 0" in names


def test_damage_is_a_line_and_the_rest_is_drawn(run):
    run.trace(1).write_bytes(run.trace(1).read_bytes()[:90])
    lines(run.events(1), {"kind": "span", "name": "forward", "time_s": "soon"})
    run.ring(0).parent.mkdir(exist_ok=True)
    run.ring(0).write_bytes(b"no ring")
    run.memory(0).unlink()
    run.memory(0).symlink_to("/etc/passwd")
    merge, events = merged(run)
    assert len(merge.problems) >= 3 and all("\n" not in problem for problem in merge.problems)
    assert sum(event["name"] == "forward" for event in events) == 1


def test_numbers_beyond_any_float_are_damage(run):
    huge = "9" * 400
    lines = (
        f'{{"kind": "span", "name": "x", "time_s": {huge}, "duration_ms": 1}}\n',
        f'{{"time_s": {huge}, "a": 1}}\n',
    )
    run.events(0).write_text(lines[0])
    run.memory(0).write_text(lines[1])
    merge, events = merged(run)
    assert events and sorted(line.split(":")[0] for line in merge.problems) == [
        "events/rank_00000.jsonl",
        "memory/rank_00000.jsonl",
    ]


def test_the_command(run, monkeypatch, capsys):
    monkeypatch.chdir(run.root.parent.parent)
    assert main(["trace", "last"]) == 0
    assert capsys.readouterr().out.startswith("dtk-trace.json.gz: 2 ranks, ")
    with gzip.open("dtk-trace.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"]
    for words in (["trace", "nothing"], ["trace", "last", "--out", "absent/x.json"]):
        assert main(words) == 2
    for name in ("events", "traces", "memory", "telemetry"):
        shutil.rmtree(run.root / name)
    for before in ([], [run.root / "x.json"]):
        for file in before:
            file.write_text("of somebody")
        with pytest.raises(DtkError, match="has nothing to draw"):
            Merge(run.root).write(run.root / "x.json")
        assert list(run.root.glob("*x.json*")) == before
    assert before[0].read_text() == "of somebody"


def test_of_a_rank_to_blame_the_call_that_differs_is_marked_and_not_the_one_it_waits_in(run):
    ring(run.ring(0), 0, [STARTED_S + 1 + i for i in range(4)], stuck=True)
    ring(run.ring(1), 1, [STARTED_S + 1 + i for i in range(4)], stuck=True)
    merge = Merge(run.root)
    merge.culprits = {1: "hang.conditional_collective"}
    for positions, expected in (((2,), [2]), ((None,), [4]), ((), [4])):
        merge.guilty = {
            (1, dump.records[0].group.name, position) for _, dump in merge._rings() for position in positions
        }
        events = [event for rank, dump in merge._rings() for event in merge._calls(rank, dump)]
        calls = {
            event["ts"]: event["args"]["position"] for event in events if event["ph"] == "X" and event["pid"] == PIDS
        }
        marks = [event for event in events if event["name"].startswith("AT FAULT")]
        assert [calls[mark["ts"]] for mark in marks] == expected and {mark["pid"] for mark in marks} == {PIDS}
