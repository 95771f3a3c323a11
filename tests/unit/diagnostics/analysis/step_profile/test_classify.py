"""Communication apart from compute: by structure first, by name last."""

import re
from pathlib import Path

import pytest

from diagnostics.analysis.step_profile.classify import TEXT, Call, classify
from diagnostics.evidence.trace.model import Message, Trace
from tests.trace_generator import Simulator, Style
from tests.unit.diagnostics.analysis.step_profile.profiles import MIB, traces

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def device(*kernels: tuple[str, int, int], lane: tuple[int, ...] = (), launches: tuple[int, ...] = ()) -> Trace:
    """Kernels as (name, start, length); lane 0 computes, lane 1 communicates, lane 2 is a thread of the host."""
    trace = Trace("t", names=[name for name, _, _ in kernels], lanes=[(0, 7), (0, 20), (500, 11)])
    for at, (_, start, length) in enumerate(kernels):
        trace.device.add(start, start + length, at, lane[at] if lane else 0)
        trace.is_memory.append(0)
        trace.launch.append(launches[at] if launches else -1)
        trace.launcher.append(2 if launches else -1)
        trace.returned.append(-1)
    return trace


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (NCCL, "call"),
        ("void at::native::vectorized_elementwise_kernel", "compute"),
        ("ampere_bf16_s16816gemm_bf16", "compute"),
        ("allreduce_fusion_kernel_oneshot_lamport", "fused"),
        ("my_own_kernel", "compute"),
        ("void deep_ep::internode::combine", "call"),
    ],
)
def test_names_tell_where_nothing_else_does(name: str, kind: str) -> None:
    work = classify(device((name, 0, 10)))
    assert bool(work.calls) == (kind == "call") and bool(work.compute) == (kind != "call")
    assert bool(work.fused) == (kind == "fused")
    assert all((call.why, call.message.op) in {("name", "all_reduce"), ("name", "collective")} for call in work.calls)


def test_a_collective_that_the_trace_links_counts_before_any_name() -> None:
    trace = device(("my_own_kernel", 0, 10), ("ampere_gemm", 20, 10))
    trace.messages = {0: Message("all_gather", 8, "float")}
    work = classify(trace)
    assert [(call.message.op, call.why) for call in work.calls] == [("all_gather", "args")]
    assert len(work.compute) == 1


@pytest.mark.parametrize(("lane", "is_call"), [(1, True), (0, False)])
def test_a_marked_region_counts_for_work_on_another_stream_only(lane: int, is_call: bool) -> None:
    trace = device(("ampere_gemm", 0, 50), ("my_own_kernel", 60, 10), lane=(0, lane), launches=(1, 55))
    trace.names.append("all_reduce 4096 B dp")
    trace.marks.add(50, 58, 2, 2)
    work = classify(trace)
    assert work.compute_lane == 0
    assert [(call.message.size_bytes, call.message.group, call.why) for call in work.calls] == (
        [(4096, "dp", "region")] if is_call else []
    )


def test_a_kernel_that_nothing_tells_on_a_stream_of_communication_is_doubtful() -> None:
    work = classify(device((NCCL, 0, 10), ("my_own_kernel", 20, 10), ("ampere_gemm", 0, 90), lane=(1, 1, 0)))
    assert work.unknown == {"my_own_kernel": 1} and len(work.compute) == 2


def test_copies_are_memory() -> None:
    trace = device(("Memcpy HtoD", 0, 10), ("ampere_gemm", 20, 10))
    trace.is_memory[0] = 1
    work = classify(trace)
    assert work.memory == [(0, 10)] and len(work.compute) == 1


@pytest.mark.parametrize("style", [Style(), Style(old=True), Style(shuffled=True)], ids=["new", "old", "shuffled"])
def test_collectives_of_a_written_trace_in_their_order(tmp_path: Path, style: Style) -> None:
    sim = Simulator(ranks=1)
    for op, size in (("all_reduce", 4 * MIB), ("all_gather", 8 * MIB)):
        sim.kernel(100.0)
        sim.collective(op, size, 50.0)
    (trace,) = traces(sim, tmp_path, style)
    work = classify(trace)
    assert len(work.calls) == 2 and len(work.compute) == 2 and not work.unknown
    assert work.calls == sorted(work.calls, key=lambda call: call.start)
    if not style.old:
        assert [(call.message.op, call.message.size_bytes) for call in work.calls] == [
            ("all_reduce", 4 * MIB), ("all_gather", 8 * MIB),
        ]  # fmt: skip


def cpu(*issues: tuple[str, int], ran: tuple[tuple[str, int, int, int], ...]) -> list[Call]:
    """A run on CPU: what the host issued (name, time) and what gloo's threads ran (op, elements, start, end)."""
    trace = Trace("t", lanes=[(500, 11), (500, 12)])
    for name, start in issues:
        trace.names.append(name)
        (trace.marks if " B " in name else trace.ops).add(start, start + 1, len(trace.names) - 1, 0)
    for op, elements, start, end in ran:
        trace.names.append(f"gloo:{op}")
        trace.mark_messages[len(trace.marks)] = Message(op, elements, "float")
        trace.marks.add(start, end, len(trace.names) - 1, 1)
    return classify(trace).calls


def test_on_cpu_each_span_of_gloos_threads_has_an_issue_of_the_host() -> None:
    first, second = cpu(
        ("c10d::allreduce_", 5), ("c10d::allreduce_", 15),
        ran=(("all_reduce", 8, 10, 30), ("all_reduce", 16, 30, 50)),
    )  # fmt: skip
    assert [(item.issued, item.message.size_bytes) for item in (first, second)] == [(5, 32), (15, 64)]


def test_gloo_reduces_and_scatters_by_an_all_reduce_of_the_whole() -> None:
    (call,) = cpu(("reduce_scatter 32 B dp", 5), ran=(("all_reduce", 8, 10, 30),))
    assert (call.message.op, call.message.group, call.issued) == ("reduce_scatter", "dp", 5)
    (other,) = cpu(("all_gather 32 B dp", 5), ran=(("all_reduce", 8, 10, 30),))
    assert (other.message.op, other.issued) == ("all_reduce", -1)


def test_what_was_issued_after_the_end_is_another_call() -> None:
    (call,) = cpu(("c10d::allreduce_", 99), ran=(("all_reduce", 8, 10, 30),))
    assert call.issued == -1


def compute(*ops: tuple[str, int, int], spans: tuple[tuple[str, int, int, int], ...]) -> list[tuple[int, int]]:
    """Compute of a run on CPU: operations of the host (name, start, end), gloo's spans (name, start, end, lane)."""
    trace = Trace("t", lanes=[(500, 11), (500, 12)])
    for name, start, end in ops:
        trace.names.append(name)
        trace.ops.add(start, end, len(trace.names) - 1, 0)
    for name, start, end, lane in spans:
        trace.names.append(name)
        trace.mark_messages[len(trace.marks)] = Message(name.removeprefix("gloo:"), 8, "float")
        trace.marks.add(start, end, len(trace.names) - 1, lane)
    return [row[:2] for row in classify(trace).compute]


def test_waiting_for_a_functional_collective_is_no_compute() -> None:
    """As DTensor does within the operation that reads the result."""
    ops = (
        ("_c10d_functional::all_reduce", 0, 10), ("c10d::allreduce_", 2, 8),
        ("Redistribute", 20, 95), ("_c10d_functional::wait_tensor", 20, 80), ("aten::add", 82, 90),
    )  # fmt: skip
    assert compute(*ops, spans=(("gloo:all_reduce", 10, 80, 1),)) == [(82, 90)]


def test_operations_of_a_compilation_are_no_compute() -> None:
    trace = Trace("t", names=["dynamo", "aten::linear", "CompiledFunctionBackward"], lanes=[(1, 1), (1, 2)])
    trace.marks.add(100, 200, 0, 0)
    for start, end, name, lane in ((110, 150, 1, 0), (210, 220, 1, 0), (110, 150, 1, 1), (90, 205, 2, 0)):
        trace.ops.add(start, end, name, lane)
    work = classify(trace)
    assert [row[:3] for row in work.compute] == [(90, 100, 0), (110, 150, 1), (200, 205, 0), (210, 220, 0)]
    assert work.operations == {"CompiledFunctionBackward": (1, 15), "aten::linear": (2, 50)}


def test_compute_beside_a_send_that_stands_on_its_own_thread_counts() -> None:
    ops = (("c10d::send", 0, 1), ("aten::linear", 5, 30), ("c10d::recv_", 40, 41))
    assert compute(*ops, spans=(("gloo:send", 1, 35, 0), ("gloo:recv", 41, 60, 0))) == [(5, 30)]


@pytest.mark.parametrize(
    ("pattern", "taken", "remaining"),
    [
        (TEXT["communication"], "nccldevkernel_allreduce_sum_f32_ring_ll(args<4096ul>)", "gemm_kernel"),
        (TEXT["communication"], "void vllm::cross_device_reduce_1stage<float>", "reduce_kernel<512, 1>"),
        (TEXT["communication"], "deep_ep::internode::dispatch", "dispatch_tokens"),
        (TEXT["fused"], "flashinfer::allreduce_fusion_kernel", "allreduce_kernel"),
        (TEXT["fused"], "void gemm_reduce_scatter", "reduce_scatter"),
        (TEXT["compute"], "ampere_sgemm_128x64_tn", "nccldevkernel_sendrecv"),
        (TEXT["compute"], "void at::native::vectorized_elementwise_kernel", "my_kernel"),
        (TEXT["step"], "ProfilerStep#12", "ProfilerStep#"),
        (TEXT["forward"], "DistributedDataParallel.forward", "Linear.forward"),
        (TEXT["forward"], "FSDP::root_pre_forward (layers.0)", "FSDP::pre_forward (layers.0)"),
        (TEXT["backward_mark"], "FSDP::post_backward_reduce", "backward_hook"),
        (TEXT["optimizer"], "Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"),
        (TEXT["issue"], "c10d::allreduce_", "gloo:all_reduce"),
        (TEXT["compiled"], "triton_poi_fused_add_0", "triton_kernel"),
        (TEXT["sync_ops"], "aten::item", "aten::items"),
    ],
)  # fmt: skip
def test_a_name_is_taken_and_one_like_it_is_not(pattern: re.Pattern[str], taken: str, remaining: str) -> None:
    assert pattern.search(taken) and not pattern.search(remaining)
