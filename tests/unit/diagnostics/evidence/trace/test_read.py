"""A trace as columns: which events are kept, and how device work is joined to its launch."""

import json

import pytest

from diagnostics.analysis.step_profile.intervals import union
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.trace.read import read


def event(name, cat, ts=1, dur=1, pid=1, tid=7, ph="X", **args):
    return {"ph": ph, "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args}


def kernel(name="gemm", ts=10, dur=5, correlation=1, **args):
    return event(name, "kernel", ts, dur, 0, 20, device=0, stream=20, correlation=correlation, **args)


def launch(ts=2, dur=1, correlation=1):
    return event("cudaLaunchKernel", "cuda_runtime", ts, dur, correlation=correlation)


@pytest.fixture
def trace(tmp_path):
    def load(*events, name="trace.json", rank=None, limits=None, **header):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**header, "traceEvents": list(events)}), encoding="utf-8")
        return read(path, name, rank, limits or Limits())

    return load


def names(result, spans):
    return [result.names[number] for number in spans.name]


def test_device_work_is_joined_to_its_launch(trace):
    result = trace(launch(), kernel(), kernel("lost", 30, correlation=9))
    assert list(result.device.start) == [10_000, 30_000], "ns"
    assert list(result.device.end) == [15_000, 35_000]
    assert (list(result.launch), list(result.returned)) == ([2000, -1], [3000, -1])
    assert result.lanes[result.launcher[0]] == (1, 7)
    assert result.lanes[result.device.lane[0]] == (0, 20)
    assert (result.first_ns, result.last_ns) == (10_000, 35_000)


def test_copies_say_what_they_move(trace):
    copy = event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", device=0, stream=7, correlation=2, bytes="4096")
    result = trace(kernel(), copy)
    assert list(result.is_memory) == [0, 1]
    assert result.copied_bytes == {1: 4096}


def test_of_a_run_on_a_device_only_telling_operations_are_kept(trace):
    events = [event(name, "cpu_op") for name in ("aten::add", "c10d::allreduce_", "aten::item")]
    result = trace(*events, kernel(), deviceProperties=[{}])
    assert names(result, result.ops) == ["c10d::allreduce_", "aten::item"]
    assert result.on_accelerator


def test_of_a_run_on_cpu_all_of_them_are(trace):
    result = trace(event("aten::add", "cpu_op"), event("aten::mul", "operator"))
    assert names(result, result.ops) == ["aten::add", "aten::mul"]
    assert not result.on_device


def test_a_machine_with_devices_of_which_the_run_used_none(trace):
    """The header lets operations be left out; the events show that they were all there is."""
    result = trace(event("aten::add", "cpu_op"), deviceProperties=[{}])
    assert names(result, result.ops) == ["aten::add"]


@pytest.mark.parametrize(
    ("name", "cat", "header", "expected"),
    [
        ("cudaLaunchKernel", "cuda_runtime", {}, True),
        ("cuLaunchKernelEx", "cuda_driver", {"deviceProperties": None}, True),
        ("hipExtModuleLaunchKernel", "hip_runtime", {"deviceProperties": []}, True),
        ("cudaStreamSynchronize", "cuda_runtime", {"distributedInfo": {"backend": "gloo"}}, True),
        ("aten::cudnn_convolution", "cpu_op", {}, True),
        ("aten::_flash_attention_forward", "cpu_op", {}, True),
        ("aten::_scaled_dot_product_efficient_attention", "cpu_op", {}, True),
        ("triton_poi_fused_add_0", "cpu_op", {}, True),
        ("nccl:all_reduce", "user_annotation", {}, True),
        ("aten::mm", "cpu_op", {"distributedInfo": {"backend": "nccl"}}, True),
        ("aten::mm", "cpu_op", {"deviceProperties": [{}]}, True),
        ("aten::mm", "cpu_op", {"deviceProperties": [{}], "distributedInfo": {"backend": "gloo"}}, False),
        ("aten::mm", "cpu_op", {"deviceProperties": []}, False),
        ("aten::cudnn_is_acceptable", "cpu_op", {}, False),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "cpu_op", {}, False),
        ("cudaDeviceSynchronize", "cuda_runtime", {}, False),
        ("cudaGetDeviceCount", "cuda_runtime", {}, False),
        ("gloo:all_reduce", "user_annotation", {}, False),
    ],
)
def test_the_header_or_the_host_shows_that_an_accelerator_was_used(trace, name, cat, header, expected):
    result = trace(event("aten::linear", "cpu_op"), event(name, cat, correlation=1), **header)
    assert (result.on_accelerator, result.on_device) == (expected, False)


def test_annotations_waits_and_work_of_the_host(trace):
    host = [event("cudaStreamSynchronize", "cuda_runtime", correlation=4), event("cudaMalloc", "cuda_runtime")]
    functions = [event("Python GC", "python_function"), event("f", "python_function")]
    marks = [event("ProfilerStep#3", "user_annotation"), event("ignored", "gpu_user_annotation")]
    result = trace(*marks, *host, *functions, kernel())
    assert names(result, result.marks) == ["ProfilerStep#3", "cudaMalloc", "Python GC"]
    assert names(result, result.syncs) == ["cudaStreamSynchronize"]


def test_collectives_with_what_they_move(trace):
    linked = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 4, "Out msg nelems": 4,
              "Process Group Name": "7", "Process Group Ranks": "[0, 3]",
              "Process Group Description": "tp"}  # fmt: skip
    shaped = event("gloo:all_reduce", "user_annotation", **{"Input Dims": [[8]], "Input type": ["float"]})
    result = trace(kernel("ncclDevKernel_AllReduce", **linked), event("record_param_comms", "cpu_op", **linked), shaped)
    assert result.messages[0].size_bytes == 16
    assert result.op_messages[0].op == "all_reduce"
    assert result.mark_messages[0].size_bytes == 32
    assert (result.groups["7"].desc, result.groups["7"].ranks, result.groups["7"].size) == ("tp", (0, 3), 2)


def test_the_header_says_whose_it_is(trace):
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, "x"], "pg_size": 8}
    info = {"rank": 3, "world_size": 8, "backend": "nccl", "pg_config": [group, "damaged", {}]}
    result = trace(kernel(), distributedInfo=info, baseTimeNanoseconds=5, with_stack=1)
    assert (result.rank, result.world_size, result.backend, result.base_ns) == (3, 8, "nccl", 5)
    assert (result.groups["0"].ranks, result.groups["0"].size) == ((0, 1), 8)
    assert result.settings == {"with_stack": 1}


@pytest.mark.parametrize(
    ("name", "rank", "expected"),
    [
        ("worker3_step.json", None, 3),
        ("worker3.json", 5, 5),
        ("t.json", None, None),
        ("rank_2/trace.json", None, 2),
        ("rank_2/worker3.json", None, 3),
    ],
)
def test_else_its_name_does(trace, name, rank, expected):
    assert trace(kernel(), name=name, rank=rank).rank == expected


def test_fractions_of_a_microsecond_and_negative_durations(trace):
    result = trace(kernel(ts=1.5, dur=-3))
    assert (list(result.device.start), list(result.device.end), result.fractional) == ([1500], [1500], True)
    assert not trace(kernel(ts=1.0, dur=2)).fractional


def test_numbers_that_no_clock_gives_cost_only_their_event(trace):
    result = trace(kernel(ts=1 << 60), kernel(correlation=1 << 63), kernel())
    assert len(result.device) == len(result.launch) == len(result.is_memory) == 1
    assert any("2 events could not be decoded" in problem.what for problem in result.problems)


def test_a_long_trace_ends_at_its_limit(trace):
    result = trace(*(kernel(ts=n) for n in range(50)), limits=Limits(spans=10))
    assert result.problems[0].what.startswith(
        f"only its first {len(result.device)} device events are used; raise it with"
    )


def test_begin_and_end_events_are_no_spans(trace):
    result = trace(kernel(), event("f", "cpu_op", ph="B"), event("aten::item", "user_annotation", ph="i"))
    assert len(result.ops) == len(result.marks) == 0


def test_a_trace_of_nothing_is_refused(trace):
    with pytest.raises(ValueError, match="no events of a profiler"):
        trace(event("x", "other"))


def test_rocms_profiler_writes_numbers_as_strings(trace):
    """Of streams, devices, correlations and sizes."""
    work = event("gemm", "kernel", 10, 5, 0, 20, device="0", stream="20", correlation="7")
    result = trace(event("hipLaunchKernel", "cuda_runtime", 2, correlation="7"), work)
    assert (list(result.device.start), list(result.launch), result.problems) == ([10_000], [2000], [])


def test_profilers_to_torch_1_11_call_operations_operator(trace):
    result = trace(event("aten::add", "Operator"), event("c10d::allreduce_", "Operator", 5))
    assert names(result, result.ops) == ["aten::add", "c10d::allreduce_"]


@pytest.mark.parametrize(
    ("cat", "call", "waits"),
    [
        ("xpu_runtime", "zeCommandListAppendLaunchKernel", "zeEventHostSynchronize"),
        ("xpu_runtime", "urEnqueueKernelLaunch", "urQueueFinish"),
        ("xpu_driver", "zeCommandListAppendMemoryCopy", "zeCommandListHostSynchronize"),
        ("privateuse1_runtime", "deviceLaunchKernel", "deviceStreamSynchronize"),
        ("mtia_runtime", "runFunction - job_prep_and_submit_for_execution", "synchronizeStream"),
    ],
)
def test_launches_and_waits_of_other_accelerators(trace, cat, call, waits):
    result = trace(event(call, cat, 2, 1, correlation=1), kernel(), event(waits, cat, 20, correlation=2))
    assert (list(result.launch), result.lanes[result.launcher[0]]) == ([2000], (1, 7))
    assert names(result, result.syncs) == [waits] and result.on_accelerator


def test_of_mtias_command_processor_only_executions_and_copies_are_work(trace):
    kinds = ("pe_exe", "dma_request", "event_wait", "event_record")
    result = trace(*(event(name, "mtia_ccp_events", 10 * n, 5, 17, 3, stream=1) for n, name in enumerate(kinds)))
    assert names(result, result.device) == ["pe_exe", "dma_request"] and list(result.is_memory) == [0, 1]


@pytest.mark.parametrize(("cat", "expected"), [("hpu_op", True), ("privateuse1_runtime", True), ("xpu_runtime", False)])
def test_calls_of_an_accelerator_alone_are_no_work_of_it(trace, cat, expected):
    """HPU has a single category, of which Kineto says that it is the host's; a profiler itself calls some runtimes."""
    result = trace(event("aten::mm", "cpu_op"), event("deviceInit", cat))
    assert (result.on_device, result.on_accelerator) == (False, expected)


def test_what_is_not_kept_shows_when_the_host_is_busy(trace):
    ops = [event("aten::empty", "cpu_op", 1000 + 100 * n, 50) for n in (0, 1, 2, 50, 51)]
    call, sort = event("cudaEventQuery", "cuda_runtime", 1350), event("aten::sort", "cpu_op", 10_000, 5000)
    result = trace(kernel(), *ops[:3], call, *ops[3:], sort, deviceProperties=[{"id": 0}])
    stretches = union((start, end + 500_000) for start, end in zip(result.activity.start, result.activity.end))
    ns = [1_000_000, 1_851_000, 6_000_000, 6_650_000, 10_000_000, 10_500_000, 15_000_000, 15_500_000]
    assert [time for stretch in stretches for time in stretch] == pytest.approx(ns, abs=100_000)
    assert names(result, result.ops) == ["aten::sort"], "as it takes as long as a pause, it may be the reason"
