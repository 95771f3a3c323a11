"""Live bytes over time: the peak, what was alive there, and what stays behind after each step."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.memory.curve import Curve, OpenSpans, build, without_backend
from diagnostics.evidence.trace.memory_marks import Span, TraceMarks
from tests.unit.diagnostics.analysis.memory.marks import CPU, GPU, MIB, Recording, training


def curve(recording: Recording) -> Curve:
    result = build(recording.marks)
    assert result is not None
    return result


def test_the_peak_and_what_was_alive_there() -> None:
    result = curve(training())
    assert (result.baseline_bytes, result.peak_bytes) == (100 * MIB, 160 * MIB)
    assert (result.peak_step, result.peak_region) == (0, "backward")
    assert [(block.size_bytes // MIB, block.phase) for block in result.at_peak] == [(40, "forward"), (20, "backward")]
    assert [block.step for block in result.allocations] == [0, 0, 0, 1, 1, 1]


def test_on_cpu_the_allocator_does_not_tell_what_lay_there_before() -> None:
    result = curve(training(CPU))
    assert result.baseline_bytes is None and result.peak_bytes == 60 * MIB and result.reserved == []
    assert curve(training(GPU)).reserved[-1][1] >= 100 * MIB


def test_no_allocation_is_no_curve() -> None:
    assert build(TraceMarks()) is None


def test_the_accelerator_with_the_most_bytes_counts() -> None:
    recording = training()
    host = training(CPU, steps=1)
    recording.marks.events += host.marks.events
    assert curve(recording).device_type == GPU


def test_what_stays_when_the_window_closes_is_counted_by_step_and_region() -> None:
    recording = training(steps=1)
    begin = recording.now_us
    recording.alloc(9, 3)
    recording.span("metrics", begin)
    recording.span("ProfilerStep#1", begin)
    result = curve(recording)
    assert {step: dict(regions) for step, regions in result.retained().items()} == {0: {}, 1: {"metrics": 3 * MIB}}
    assert [block.size_bytes for block in result.outlive()] == [3 * MIB]
    result.allocations[-1].lent = True
    assert result.outlive() == [], "a collective holds on to it for a while"


def test_what_stays_between_the_ends_of_backward_passes() -> None:
    recording = training(steps=3)
    assert curve(recording).between_backwards() == [0, 0]
    recording = Recording()
    for step in range(3):
        begin = recording.now_us
        recording.alloc(100 + step, 2)
        recording.span("backward", begin)
    assert curve(recording).between_backwards() == [2 * MIB, 2 * MIB]


def test_a_release_that_the_trace_lost_is_made_up_for_by_the_next_use_of_the_address() -> None:
    recording = Recording(before=0)
    recording.alloc(1, 10)
    recording.alloc(1, 4)
    result = curve(recording)
    assert [block.end_us is None for block in result.allocations] == [False, True] and result.peak_bytes == 10 * MIB


def test_what_was_allocated_before_the_window_is_told_when_it_goes() -> None:
    recording = Recording(before=50 * MIB)
    recording.alloc(1, 10)
    recording.free(77, 20)
    result = curve(recording)
    assert result.released == [(2.0, 20 * MIB)] and result.peak_bytes == 60 * MIB


def test_copies_of_the_backend_are_left_out_of_its_own_peak() -> None:
    recording = Recording(CPU)
    recording.alloc(1, 10)
    recording.marks.backend = [Span("gloo:all_reduce", 1.5, 9.0, 7)]
    recording.alloc(2, 30, thread=7)
    recording.free(2)
    result = curve(recording)
    assert [block.backend for block in result.allocations] == [False, True] and result.peak_bytes == 40 * MIB
    own = without_backend(result)
    assert own.peak_bytes == 10 * MIB and [block.size_bytes for block in own.at_peak] == [10 * MIB]


def test_open_spans_are_the_outermost_first() -> None:
    spans = OpenSpans([Span("step", 0, 100, 1), Span("forward", 10, 50, 1), Span("backward", 60, 90, 1)])
    assert [[span.name for span in spans.at(now)] for now in (5, 20, 55, 70, 95, 200)] == [
        ["step"], ["step", "forward"], ["step"], ["step", "backward"], ["step"], [],
    ]  # fmt: skip


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=40))
def test_the_peak_is_that_of_a_plain_sum(moves: list[tuple[int, int]]) -> None:
    """Each move allocates at an address, or frees what is there."""
    recording, alive, level, most = Recording(before=0), set[int](), 0, 0
    sizes: dict[int, int] = {}
    for address, mib in moves:
        if address in alive:
            alive.discard(address)
            recording.free(address)
            level -= sizes[address]
        else:
            alive.add(address)
            recording.alloc(address, mib)
            sizes[address] = mib
            level += mib
        most = max(most, level)
    result = curve(recording)
    assert result.peak_bytes == most * MIB == sum(block.size_bytes for block in result.at_peak)
    assert sum(block.end_us is None for block in result.allocations) == len(alive)


@pytest.mark.parametrize(
    ("names", "phase"),
    [
        (["Optimizer.step#AdamW.step"], "optimizer"),
        (["backward", "FSDP::all_gather (blocks.0)"], "gather"),
        (["FSDP::post_backward_reduce"], "reduce"),
        (["backward", "checkpoint"], "checkpoint"),
        (["data"], "data"),
        (["database"], "step"),
        (["my region"], "step"),
    ],
)
def test_the_most_specific_region_names_the_phase(names: list[str], phase: str) -> None:
    recording = Recording()
    recording.alloc(1, 1)
    for name in names:
        recording.span(name, 0.0)
    recording.span("ProfilerStep#3", 0.0)
    recording.marks.spans.sort(key=lambda span: -span.end_us)
    (block,) = curve(recording).allocations
    assert (block.phase, block.step) == (phase, 3)
