"""What a trace tells of a rank's gathers: whose they are, and which allocations are theirs."""

import pytest

from diagnostics.analysis.memory.curve import Curve, build
from diagnostics.analysis.memory.profiled import mark_lent, mark_outputs, traffic
from tests.unit.diagnostics.analysis.memory.marks import MIB, Recording


def curve(recording: Recording) -> Curve:
    result = build(recording.marks)
    assert result is not None
    return result


def sharded() -> Recording:
    """One unit: gathered in forward and again in backward, then reduced."""
    recording = Recording()
    for name in ("FSDP::pre_forward (blocks.0)", "FSDP::pre_backward (blocks.0)"):
        outer = recording.now_us
        inner = recording.now_us
        recording.call("all_gather", 5, 10)
        recording.span("FSDP::all_gather (blocks.0)", inner)
        recording.span(name, outer)
    begin = recording.now_us
    recording.call("reduce_scatter", 10, 5)
    recording.span("FSDP::post_backward_reduce (blocks.0)", begin)
    begin = recording.now_us
    recording.span("FSDP::root_post_backward_callback", begin)
    return recording


def test_gathers_inside_an_annotation_of_fsdp_are_that_units() -> None:
    result = traffic(sharded().marks, "trace.json", 2)
    assert [(gather.kind, gather.unit, gather.full_bytes) for gather in result.gathers] == [
        ("unit", "blocks.0", 10 * MIB)
    ] * 2
    assert [(move.what, move.unit, move.phase) for move in result.moves] == [
        ("gather", "blocks.0", "forward"), ("gather", "blocks.0", "backward"), ("reduce", "blocks.0", ""),
        ("root_end", "", ""),
    ]  # fmt: skip
    use = result.units["blocks.0"]
    assert (use.gathers, use.forwards, use.backwards, use.full_bytes) == (2, 1, 1, 10 * MIB)
    assert result.scattered == {10 * MIB} and result.whole.is_exact and result.whole.least_bytes == 10 * MIB


@pytest.mark.parametrize(("functional", "kind"), [(False, "user"), (True, "library")])
def test_other_gathers_are_the_users_or_a_librarys(functional: bool, kind: str) -> None:
    recording = Recording()
    begin = recording.now_us
    recording.call("all_gather", 5, None, is_list=True, functional=functional)
    recording.span("metrics", begin)
    recording.span("ProfilerStep#4", begin)
    (gather,) = traffic(recording.marks, "trace.json", 2).gathers
    assert (gather.kind, gather.is_list, gather.region, gather.step, gather.full_bytes) == (
        kind,
        True,
        "metrics",
        4,
        10 * MIB,
    )


def test_a_part_as_large_as_a_parameter_is_told() -> None:
    recording = Recording()
    recording.call("all_gather", 5, 10)
    recording.marks.gradient_bytes = {5 * MIB}
    assert traffic(recording.marks, "t", 2).gathers[0].like_parameter


@pytest.mark.parametrize(("is_list", "sizes"), [(False, [10]), (True, [5, 5])])
def test_the_output_of_a_gather_is_the_youngest_block_of_its_size(is_list: bool, sizes: list[int]) -> None:
    recording = Recording()
    recording.alloc(1, 10)
    recording.alloc(2, 7)
    for at, mib in enumerate(sizes):
        recording.alloc(10 + at, mib)
    recording.call("all_gather", 5, None if is_list else 10, is_list=is_list)
    result = curve(recording)
    mark_outputs(result, traffic(recording.marks, "t", 2).gathers)
    assert [block.size_bytes // MIB for block in result.allocations if block.gathered] == sizes
    assert not result.allocations[0].gathered


def test_a_functional_gather_makes_its_output_itself() -> None:
    recording = Recording()
    recording.alloc(1, 10)
    recording.call("all_gather", 5, 10, functional=True)
    recording.alloc(2, 10)
    result = curve(recording)
    mark_outputs(result, traffic(recording.marks, "t", 2).gathers)
    assert [block.gathered for block in result.allocations] == [False, True]


def test_buffers_that_a_collective_reads_or_writes_are_lent() -> None:
    recording = Recording()
    for address, mib in ((1, 10), (2, 10), (3, 5), (4, 7)):
        recording.alloc(address, mib)
    recording.free(2)
    recording.call("reduce_scatter", 10, 5)
    result = curve(recording)
    mark_lent(result, recording.marks.calls)
    assert [(block.lent, block.sent) for block in result.allocations] == [
        (True, True), (False, False), (True, False), (False, False),
    ]  # fmt: skip
