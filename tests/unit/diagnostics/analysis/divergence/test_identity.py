"""When two calls are the same call."""

import pytest

from diagnostics.analysis.divergence.identity import (
    PARTS,
    agree,
    at_line,
    differing_parts,
    in_backward,
    on_path,
    replaces,
    same_statement,
    shared_path,
    signature,
)
from diagnostics.evidence.calls import Wire, settle
from tests.unit.diagnostics.analysis.calls import call, frame

WIRE = Wire("all_reduce", (8,), ("float32",), 0, "SUM")
OTHER = Wire("reduce", (9,), ("bfloat16",), 1, "MAX")
UNKNOWN = Wire("", (), (), None, "")


@pytest.mark.parametrize("part", range(len(PARTS)))
def test_each_part_that_both_know_and_that_differs_is_named(part: int) -> None:
    other = WIRE._replace(**{WIRE._fields[part]: OTHER[part]})
    assert differing_parts(WIRE, other) == differing_parts(other, WIRE) == (PARTS[part],)
    unknown = WIRE._replace(**{WIRE._fields[part]: UNKNOWN[part]})
    assert differing_parts(WIRE, unknown) == differing_parts(unknown, WIRE) == ()


def test_all_parts_in_their_order() -> None:
    assert differing_parts(WIRE, OTHER) == PARTS
    assert differing_parts(WIRE, WIRE) == ()


def test_two_ways_to_one_line_are_two_calls_by_path_and_one_by_line() -> None:
    first, other = call(1, callers=[frame(1, "train")]), call(2, callers=[frame(2, "evaluate")])
    assert at_line(first) == at_line(other) and on_path(first) != on_path(other)
    assert at_line(first) != at_line(call(1, size=9))


def test_a_backward_pass_is_told_by_its_recorder_or_by_torch_and_by_no_name_of_the_user() -> None:
    assert in_backward(call(1, region="backward/bucket 3"))
    assert not in_backward(call(1, function="run_backward", callers=[frame(5, "backward")]))
    user = {"name": "step", "filename": "/job/train.py", "line": 5}
    for name in ("backward", "_engine_run_backward"):
        torch = {"name": name, "filename": "/x/site-packages/torch/autograd/graph.py", "line": 824}
        result = call(1)
        result.frames = [torch, user]
        assert in_backward(settle(result))
    assert not in_backward(call(1, region="forward"))


def test_the_frames_that_all_paths_begin_with() -> None:
    main, train, test = frame(1), frame(2, "train"), frame(3, "test")
    assert shared_path([[main, train], [main, train, test], [main, train]]) == [main, train]
    assert shared_path([[main, train], [main, test]]) == [main]
    assert shared_path([[main], []]) == [] == shared_path([])


def test_two_calls_of_one_function_with_the_same_tensors_replace_each_other() -> None:
    assert replaces(call(1, 10, "all_reduce"), call(1, 12, "reduce"))
    assert not replaces(call(1, 10, "all_reduce"), call(1, 12, "all_reduce", 9))
    assert not replaces(call(1, 10), call(1, 12, function="log"))
    assert not replaces(call(1, None), call(1, None))


def test_one_signature_for_what_ranks_must_agree_on() -> None:
    wire, other = Wire("all_reduce", (8,), ("float32",)), Wire("all_reduce", (9,), ("float32",))
    assert signature(wire) == signature(Wire("all_reduce", (8,), ("float32",))) != signature(other)
    assert 0 < signature(wire) < 1 << 64
    assert agree(wire, wire) and agree(wire, Wire("all_reduce", (), ())) and not agree(wire, other)


@pytest.mark.parametrize(("root", "other", "same"), [(0, 1, True), (0, 0, False), (None, None, True), (0, None, True)])
def test_rooted_calls_of_two_lines_are_one_statement_only_if_their_roots_may_differ(
    root: int | None, other: int | None, same: bool
) -> None:
    first, second = call(1, 10, "broadcast", wire={"root": root}), call(1, 12, "broadcast", wire={"root": other})
    assert same_statement(first, second) == same
    assert same_statement(call(1, 10), call(1, 10)) and not same_statement(call(1, 10), call(1, 12))
