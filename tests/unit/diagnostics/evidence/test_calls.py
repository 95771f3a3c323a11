"""The common form of calls: names of operations, how a call is printed, whose frames count."""

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.calls import (
    Call,
    Described,
    Dump,
    GroupKey,
    Wire,
    describe,
    dtype,
    is_library,
    operation,
    settle,
)
from diagnostics.evidence.model import Frame

GROUP = GroupKey("gloo", "0", "default_pg")


def call(seq=3, **fields):
    wire = Wire("all_reduce", (8,), ("float32",))
    return Call(GROUP, seq, Described(wire, "all_reduce [8] float32"), True, 1.0, **fields)


def frame(file, line=1, name="step"):
    return {"filename": file, "line": line, "name": name}


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("gloo:allreduce_coalesced", "all_reduce"),
        ("allreduce_sparse", "all_reduce"),
        ("nccl:all_to_allv", "all_to_all"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("something_new", "something_new"),
        ("", ""),
    ],
)
def test_all_names_of_an_operation_are_one(name, op):
    assert operation(name) == op


@given(st.sampled_from(["Float", "BFloat16", "Long", "Bool", "torch.float16", "float8_e4m3fn"]))
@settings(max_examples=20)
def test_names_of_types_settle_after_one_step(name):
    assert dtype(dtype(name)) == dtype(name)
    assert not dtype(name).startswith("torch.")


def test_types_as_torch_writes_them_in_python():
    assert [dtype(name) for name in ("Float", "Half", "torch.int64", "uint8")] == [
        "float32", "float16", "int64", "uint8",
    ]  # fmt: skip


def test_at_most_three_shapes_are_printed():
    wire = Wire("any", (), ())
    two = describe("all_reduce", wire, [[1024], [8]], "float32")
    assert (two.text, two.arguments) == ("all_reduce [1024], [8] float32", "[1024], [8] float32")
    assert describe("broadcast", wire._replace(root=2), [[]], "int64").text == "broadcast scalar int64 root 2"
    assert describe("all_reduce", wire, [[n] for n in range(5)], "").text == "all_reduce [0], [1], [2] and 2 more"
    assert describe("barrier", wire, [], "").text == "barrier"


def test_what_ranks_must_agree_on_is_printed_behind_the_shape():
    wire = Wire("broadcast", (32,), ("float32",), root=2)
    assert describe("broadcast", wire, [[8]], "float32").text == "broadcast [8] float32 root 2"
    reduced = Wire("reduce", (8,), ("float32",), root=0, reduce_op="SUM")
    assert describe("reduce", reduced, [[8]], "float32").text == "reduce [8] float32 SUM root 0"


@pytest.mark.parametrize(
    ("p2p", "peer", "tag", "text"),
    [
        ("send", 3, None, "send [4] float32 to 3"),
        ("recv", None, 1, "recv [4] float32 from any tag 1"),
        ("recv", 0, 0, "recv [4] float32 from 0"),
    ],
)
def test_a_transfer_names_its_peer_and_its_tag(p2p, peer, tag, text):
    assert describe(p2p, Wire(p2p, (), ("float32",)), [[4]], "float32", p2p, peer, tag).text == text


def test_a_call_is_cited_with_position_and_line():
    at = call(stack=(Frame("/job/train.py", 17, "step"), Frame("/job/main.py", 2, "main")))
    assert at.cited() == "all_reduce [8] float32 (#3, train.py:17)"
    assert at.cited(position=False) == "all_reduce [8] float32 (train.py:17)"
    assert at.place == "/job/train.py:17"
    assert call().cited() == "all_reduce [8] float32 (#3)"
    assert call(seq=70002).cited() == "all_reduce [8] float32 (#70,002)" and call(seq=70002).place == "position 70,002"
    assert call().place == "position 3"
    assert call(seq=0).cited() == "all_reduce [8] float32", "0 = no position is known"
    assert call(p2p="send").cited() == "all_reduce [8] float32", "a transfer has no position that others share"


def test_the_users_own_call_is_named_first():
    assert call(user_op="all_gather_object").text == "all_gather_object (all_reduce [8] float32)"
    assert call(user_op="all_reduce").text == "all_reduce [8] float32"


def test_a_group_is_named_by_its_description():
    assert GROUP.label == "default_pg"
    assert GroupKey("nccl", "7", "undefined").label == "7"
    assert GroupKey("nccl", "7", "").label == "7"


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/opt/venv/lib/python3.12/site-packages/numpy/core.py", True),
        ("/usr/lib/python3.11/threading.py", True),
        ("/src/pytorch/torch/nn/modules/module.py", True),
        ("C:\\work\\torch\\optim\\adam.py", True),
        ("<frozen importlib._bootstrap>", True),
        ("/src/dtk/record/wrappers.py", True),
        ("", True),
        ("/home/me/torchtitan/train.py", False),
        ("/home/me/torch/train.py", False),
        ("train.py", False),
        ("/src/dtk/tasks/own.py", False),
    ],
)
def test_whose_file_it_is(file, library):
    assert is_library(file) is library


def test_only_the_users_frames_are_kept_and_the_call_that_hides_them_is_named():
    torch = "/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
    raw = [frame(torch, 1, "all_reduce"), frame(torch, 2, "all_gather_object"), frame("/job/train.py", 12),
           frame(torch, 3, "broadcast_object_list"), frame("/job/main.py", 4, "main")]  # fmt: skip
    settled = settle(call(frames=raw))
    assert settled.stack == (Frame("/job/train.py", 12, "step"), Frame("/job/main.py", 4, "main"))
    assert settled.user_op == "all_gather_object", "what lies outside the user's line is not this call"
    assert settled.frames is None


def test_backward_is_a_region_and_damaged_frames_are_left_out():
    engine = "/lib/python3.12/site-packages/torch/_tensor.py"
    raw = [None, 7, frame(engine, 3, "backward"), frame("/job/train.py", "many", "step")]
    settled = settle(call(frames=raw))
    assert settled.region == "backward"
    assert settled.stack == (Frame("/job/train.py", 0, "step"),)
    assert settle(call(frames=raw, region="mine")).region == "mine"
    assert settle(call(frames="no list")).stack == ()


def test_equal_stacks_are_one_object():
    raw = [frame("/job/train.py", 12)]
    first, other = settle(call(frames=raw)), settle(call(frames=list(raw)))
    assert first.stack is other.stack
    assert first.stack[0] is other.stack[0]


def test_the_last_call_of_a_dump_is_the_youngest():
    calls = [call(seq) for seq in (1, 2)]
    calls[0].created_s, calls[1].created_s = 20.0, 10.0
    assert Dump(0, "f", "gloo", calls).last_s() == 20.0
    calls[0].created_s = calls[1].created_s = None
    assert Dump(0, "f", "gloo", calls).last_s() == 0.0
    assert Dump(0, "f", "gloo", []).last_s() == 0.0
