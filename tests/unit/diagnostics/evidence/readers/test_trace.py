import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.trace import TraceFile, recognise
from diagnostics.evidence.trace import model as trace_index
from diagnostics.evidence.trace.memory_marks import read_marks
from diagnostics.evidence.trace.model import Message, Trace
from tests.fuzz.seeds import trace as trace_file
from tests.shared_data import shared_data


def load(path: Path, value: Any, name: str = "trace.json", rank: int | None = None) -> Trace:
    file = path / name
    file.write_text(json.dumps(value))
    return TraceFile(file, name, rank, Limits()).load()


def kernel(**more: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 5}
    return {**event, "args": {"stream": 7, "device": 0, "correlation": 1}, **more}


@pytest.mark.parametrize(
    ("head", "is_trace"),
    [
        (b'{"schemaVersion": 1, "deviceProperties": [', True),
        (b'{\n  "traceEvents": [', True),
        (b'[{"ph": "X", "ts": 1', True),
        (b'{"displayTimeUnit": "ms", "baseTimeNanoseconds": 5', True),
        (b'{"version": "2.10", "pg_config": {}, "entries": [', False),
        (b'[{"a": 1}]', False),
        (b'{"schemaVersion": 1, "state": "finished"}', False),
        (b"", False),
        (b"Traceback", False),
    ],
)
def test_recognised_by_content(head: bytes, is_trace: bool) -> None:
    assert recognise(head) is is_trace


def test_the_rank_is_what_the_trace_says_before_what_the_name_says(tmp_path: Path) -> None:
    text = {"distributedInfo": {"rank": 5, "world_size": 8, "backend": "nccl"}, "traceEvents": [kernel()]}
    assert load(tmp_path, text, "rank3.json", 3).rank == 5
    assert load(tmp_path, {"traceEvents": [kernel()]}, "rank3.json", 3).rank == 3
    assert load(tmp_path, {"traceEvents": [kernel()]}, "worker7_step_12.1694128201545.pt.trace.json").rank == 7
    assert load(tmp_path, {"traceEvents": [kernel()]}, "host.16941282.json").rank is None


def test_collectives_are_linked_with_group_size_and_type(tmp_path: Path) -> None:
    text = {
        "Collective name": "_allgather_base", "dtype": "BFloat16", "In msg nelems": 10, "Out msg nelems": 40,
        "Process Group Name": "3", "Process Group Description": "dp", "Process Group Ranks": "[0, 4]", "Group size": 2,
        "Seq": 9, "stream": 20, "correlation": 2,
    }  # fmt: skip
    trace = load(tmp_path, [kernel(args=text)])
    assert trace.messages == {0: Message("all_gather", 40, "bfloat16", "3", 2, 9)}
    assert trace.messages[0].size_bytes == 80
    assert trace.groups["3"].ranks == (0, 4)


def test_numbers_of_a_wrong_type_cost_only_their_event(tmp_path: Path) -> None:
    uneven = [kernel(ts="now"), kernel(args={"correlation": "x"}), kernel(ts=1e300), kernel(args=5), kernel()]
    trace = load(tmp_path, uneven)
    assert len(trace.device) == 1
    assert trace.problems[0].figures["count"] == 4


@pytest.mark.parametrize(
    "damage",
    [
        {"ts": 1 << 54},
        {"ts": 9e15, "dur": 9e14},
        {"ts": -1e300},
        {"args": {"stream": 7, "correlation": 1 << 70}},
        {"args": {"Collective name": "allreduce", "Process Group Name": "0", "correlation": 1 << 63}},
    ],
)
def test_a_number_of_over_64_bits_shifts_no_column(tmp_path: Path, damage: dict[str, Any]) -> None:
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 2, "ts": 4, "dur": 1}
    launches = [{**launch, "args": {"correlation": 1}}, {**launch, "args": {"correlation": 2}, "ts": 6}]
    uneven = kernel(**damage)
    others = [kernel(), kernel(ts=30, args={"stream": 9, "device": 0, "correlation": 2})]
    trace = load(tmp_path, [{**launches[0], **damage}, *launches, others[0], uneven, others[1]])
    assert list(trace.device.start) == [10_000, 30_000]
    assert list(trace.launch) == [4_000, 6_000]
    assert trace.messages == {}
    assert [trace.lanes[lane][1] for lane in trace.device.lane] == [7, 9]
    assert trace.problems[0].about == "damaged_events"


def test_names_beyond_the_limit_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_index, "MAX_NAMES", 3)
    trace = load(tmp_path, [kernel(name=f"k{n % 6}") for n in range(12)])
    assert [trace.names[n] for n in trace.device.name] == ["k0", "k1", "k2", *["(other)"] * 3] * 2


def test_a_trace_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no events"):
        load(tmp_path, {"traceEvents": []})


def test_memory_events_are_in_the_traces_own_clock(tmp_path: Path) -> None:
    args = {"Bytes": -512, "Addr": 9, "Total Allocated": 100, "Total Reserved": 200, "Device Type": 1, "Device Id": 3}
    event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 2.5, "tid": 4, "args": args}
    others = [{"ph": "X", "name": "other", "ts": 1}, {**event, "args": {"Bytes": "many"}}, {**event, "args": {}}]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [*others, event], "baseTimeNanoseconds": 5_000_000}))
    (result,) = read_marks(path, Limits()).events
    assert (result.ts_us, result.bytes, result.address) == (2.5, -512, 9)
    assert (result.total_allocated_bytes, result.total_reserved_bytes) == (100, 200)
    assert (result.device_type, result.device_id, result.thread) == (1, 3, 4)


def test_real_traces_are_read_whole() -> None:
    path = shared_data("traces/hta_ddp2_a100_nccl_args/rank0.json.gz")
    trace = TraceFile(path, path.name, None, Limits()).load()
    assert (trace.rank, trace.world_size, trace.problems) == (0, 2, [])
    assert len(trace.device) == 2700 + 960 + 114
    assert len(trace.messages) == 21
    assert min(trace.launch) >= 0


def test_a_long_header_of_an_exporter_may_stand_before_the_events(tmp_path: Path) -> None:
    header = {"metadata": {f"parameter {n}": "x" * 100 for n in range(300)}}
    (tmp_path / "trace.json").write_text(json.dumps({**header, "traceEvents": [kernel()]}))
    evidence = gather(tmp_path, Limits())
    assert [item.file for item in evidence.handles(TraceFile)] == ["trace.json"]


def test_a_real_trace_with_a_long_header_is_read() -> None:
    evidence = gather(shared_data("traces/tracelens_h100_header"), Limits())
    (file,) = evidence.handles(TraceFile)
    assert len(file.load().device) == 156


HONEST = json.dumps(trace_file()).encode()
DAMAGED = b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": ['
