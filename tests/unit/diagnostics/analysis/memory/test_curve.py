"""Live bytes over time: the peak, what was alive there, and what stays behind after each step."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.memory.curve import Curve, OpenSpans, build, without_backend
from diagnostics.evidence.trace.memory_marks import Span, TraceMarks
from tests.unit.diagnostics.analysis.memory.marks import CPU, GPU, MIB, Recording, training


def curve(made: Recording) -> Curve:
    found = build(made.marks)
    assert found is not None
    return found


def test_the_peak_and_what_was_alive_there() -> None:
    found = curve(training())
    assert (found.baseline_bytes, found.peak_bytes) == (100 * MIB, 160 * MIB)
    assert (found.peak_step, found.peak_region) == (0, "backward")
    assert [(block.size_bytes // MIB, block.phase) for block in found.at_peak] == [(40, "forward"), (20, "backward")]
    assert [block.step for block in found.allocations] == [0, 0, 0, 1, 1, 1]


def test_on_cpu_the_allocator_does_not_tell_what_lay_there_before() -> None:
    found = curve(training(CPU))
    assert found.baseline_bytes is None and found.peak_bytes == 60 * MIB and found.reserved == []
    assert curve(training(GPU)).reserved[-1][1] >= 100 * MIB


def test_no_allocation_is_no_curve() -> None:
    assert build(TraceMarks()) is None


def test_the_accelerator_with_the_most_bytes_counts() -> None:
    made = training()
    host = training(CPU, steps=1)
    made.marks.events += host.marks.events
    assert curve(made).device_type == GPU


def test_what_stays_when_the_window_closes_is_counted_by_step_and_region() -> None:
    made = training(steps=1)
    begin = made.now_us
    made.alloc(9, 3)
    made.span("metrics", begin)
    made.span("ProfilerStep#1", begin)
    found = curve(made)
    assert {step: dict(regions) for step, regions in found.retained().items()} == {0: {}, 1: {"metrics": 3 * MIB}}
    assert [block.size_bytes for block in found.outlive()] == [3 * MIB]
    found.allocations[-1].lent = True
    assert found.outlive() == [], "a collective holds on to it for a while"


def test_what_stays_between_the_ends_of_backward_passes() -> None:
    made = training(steps=3)
    assert curve(made).between_backwards() == [0, 0]
    made = Recording()
    for step in range(3):
        begin = made.now_us
        made.alloc(100 + step, 2)
        made.span("backward", begin)
    assert curve(made).between_backwards() == [2 * MIB, 2 * MIB]


def test_a_release_that_the_trace_lost_is_made_up_for_by_the_next_use_of_the_address() -> None:
    made = Recording(before=0)
    made.alloc(1, 10)
    made.alloc(1, 4)
    found = curve(made)
    assert [block.end_us is None for block in found.allocations] == [False, True] and found.peak_bytes == 10 * MIB


def test_what_was_allocated_before_the_window_is_told_when_it_goes() -> None:
    made = Recording(before=50 * MIB)
    made.alloc(1, 10)
    made.free(77, 20)
    found = curve(made)
    assert found.released == [(2.0, 20 * MIB)] and found.peak_bytes == 60 * MIB


def test_copies_of_the_backend_are_left_out_of_its_own_peak() -> None:
    made = Recording(CPU)
    made.alloc(1, 10)
    made.marks.backend = [Span("gloo:all_reduce", 1.5, 9.0, 7)]
    made.alloc(2, 30, thread=7)
    made.free(2)
    found = curve(made)
    assert [block.backend for block in found.allocations] == [False, True] and found.peak_bytes == 40 * MIB
    own = without_backend(found)
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
    made, alive, level, most = Recording(before=0), set[int](), 0, 0
    sizes: dict[int, int] = {}
    for address, mib in moves:
        if address in alive:
            alive.discard(address)
            made.free(address)
            level -= sizes[address]
        else:
            alive.add(address)
            made.alloc(address, mib)
            sizes[address] = mib
            level += mib
        most = max(most, level)
    found = curve(made)
    assert found.peak_bytes == most * MIB == sum(block.size_bytes for block in found.at_peak)
    assert sum(block.end_us is None for block in found.allocations) == len(alive)


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
    made = Recording()
    made.alloc(1, 1)
    for name in names:
        made.span(name, 0.0)
    made.span("ProfilerStep#3", 0.0)
    made.marks.spans.sort(key=lambda span: -span.end_us)
    (block,) = curve(made).allocations
    assert (block.phase, block.step) == (phase, 3)
