"""The stack of a collective that timed out, frame by frame."""

import pytest

from diagnostics.evidence.readers.log import HEAD, MAX_FRAMES, CollectiveStack, read_text

TORCH = "/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"


def fed(*lines):
    stack = CollectiveStack(7, 3)
    places = [stack.feed(line) for line in lines]
    return stack, places


def test_the_users_innermost_frame_and_the_call_within_it():
    lines = [f"#0 all_reduce from {TORCH}:2501", f"#1 wrapper from {TORCH}:81", "#2 step from /job/train.py:12"]
    stack, places = fed(*lines)
    assert places == [None, None, {"function": "step", "file": "/job/train.py", "line": 12, "op": "all_reduce"}]
    assert (stack.number, stack.rank) == (0, 3), "the stack is told once"


@pytest.mark.parametrize("line", ["#2 step from /job/train.py:12", "loss 3.2", "#0 step from /job/train.py"])
def test_a_line_out_of_turn_ends_it(line):
    stack, places = fed(line)
    assert places == [None]
    assert stack.number == 0


def test_an_empty_line_that_a_folded_one_left_ends_nothing():
    _, places = fed(f"#0 all_reduce from {TORCH}:2501", "", "#1 step from /job/train.py:12")
    assert places[2] == {"function": "step", "file": "/job/train.py", "line": 12, "op": "all_reduce"}


def test_a_second_head_begins_anew():
    heads = [f"[rank{rank}]: {HEAD}" for rank in range(2)]
    text = "\n".join([heads[0], f"#0 all_reduce from {TORCH}:1", heads[1], "#0 step from /job/train.py:3", ""])
    (fact,) = (fact for fact in read_text(text, "job.log", 0).facts if fact.kind == "collective_stack")
    assert (fact.rank, fact.fields["line"], fact.fields["op"]) == (1, 3, "")


def test_a_stack_without_end_has_one():
    stack, places = fed(*(f"#{n} call from {TORCH}:{n}" for n in range(MAX_FRAMES + 2)))
    assert stack.number == 0
    assert not any(places)
