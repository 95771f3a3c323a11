"""What a trace tells of a rank's gathers: whose they are, and which allocations are theirs."""

import pytest

from diagnostics.analysis.memory.curve import Curve, build
from diagnostics.analysis.memory.profiled import mark_lent, mark_outputs, traffic
from tests.unit.diagnostics.analysis.memory.marks import MIB, Recording


def curve(made: Recording) -> Curve:
    found = build(made.marks)
    assert found is not None
    return found


def sharded() -> Recording:
    """One unit: gathered in forward and again in backward, then reduced."""
    made = Recording()
    for name in ("FSDP::pre_forward (blocks.0)", "FSDP::pre_backward (blocks.0)"):
        outer = made.now_us
        inner = made.now_us
        made.call("all_gather", 5, 10)
        made.span("FSDP::all_gather (blocks.0)", inner)
        made.span(name, outer)
    begin = made.now_us
    made.call("reduce_scatter", 10, 5)
    made.span("FSDP::post_backward_reduce (blocks.0)", begin)
    begin = made.now_us
    made.span("FSDP::root_post_backward_callback", begin)
    return made


def test_gathers_inside_an_annotation_of_fsdp_are_that_units() -> None:
    found = traffic(sharded().marks, "trace.json", 2)
    assert [(one.kind, one.unit, one.full_bytes) for one in found.gathers] == [("unit", "blocks.0", 10 * MIB)] * 2
    assert [(move.what, move.unit, move.phase) for move in found.moves] == [
        ("gather", "blocks.0", "forward"), ("gather", "blocks.0", "backward"), ("reduce", "blocks.0", ""),
        ("root_end", "", ""),
    ]  # fmt: skip
    use = found.units["blocks.0"]
    assert (use.gathers, use.forwards, use.backwards, use.full_bytes) == (2, 1, 1, 10 * MIB)
    assert found.scattered == {10 * MIB} and found.whole.is_exact and found.whole.least_bytes == 10 * MIB


@pytest.mark.parametrize(("functional", "kind"), [(False, "user"), (True, "library")])
def test_other_gathers_are_the_users_or_a_librarys(functional: bool, kind: str) -> None:
    made = Recording()
    begin = made.now_us
    made.call("all_gather", 5, None, is_list=True, functional=functional)
    made.span("metrics", begin)
    made.span("ProfilerStep#4", begin)
    (one,) = traffic(made.marks, "trace.json", 2).gathers
    assert (one.kind, one.is_list, one.region, one.step, one.full_bytes) == (kind, True, "metrics", 4, 10 * MIB)


def test_a_part_as_large_as_a_parameter_is_told() -> None:
    made = Recording()
    made.call("all_gather", 5, 10)
    made.marks.gradient_bytes = {5 * MIB}
    assert traffic(made.marks, "t", 2).gathers[0].like_parameter


@pytest.mark.parametrize(("is_list", "sizes"), [(False, [10]), (True, [5, 5])])
def test_the_output_of_a_gather_is_the_youngest_block_of_its_size(is_list: bool, sizes: list[int]) -> None:
    made = Recording()
    made.alloc(1, 10)
    made.alloc(2, 7)
    for at, mib in enumerate(sizes):
        made.alloc(10 + at, mib)
    made.call("all_gather", 5, None if is_list else 10, is_list=is_list)
    found = curve(made)
    mark_outputs(found, traffic(made.marks, "t", 2).gathers)
    assert [block.size_bytes // MIB for block in found.allocations if block.gathered] == sizes
    assert not found.allocations[0].gathered


def test_a_functional_gather_makes_its_output_itself() -> None:
    made = Recording()
    made.alloc(1, 10)
    made.call("all_gather", 5, 10, functional=True)
    made.alloc(2, 10)
    found = curve(made)
    mark_outputs(found, traffic(made.marks, "t", 2).gathers)
    assert [block.gathered for block in found.allocations] == [False, True]


def test_buffers_that_a_collective_reads_or_writes_are_lent() -> None:
    made = Recording()
    for address, mib in ((1, 10), (2, 10), (3, 5), (4, 7)):
        made.alloc(address, mib)
    made.free(2)
    made.call("reduce_scatter", 10, 5)
    found = curve(made)
    mark_lent(found, made.marks.calls)
    assert [(block.lent, block.sent) for block in found.allocations] == [
        (True, True), (False, False), (True, False), (False, False),
    ]  # fmt: skip
