"""Names, sizes and types of the events of a trace."""

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.trace.model import (
    Args,
    Message,
    collective_word,
    elements,
    message_of_args,
    message_of_shapes,
    ranks_of,
)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_reduce"),
        ("ncclKernel_ReduceScatter_RING", "reduce_scatter"),
        ("nccl:_all_gather_base", "all_gather"),
        ("gloo:broadcast", "broadcast"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("AllGather", "all_gather"),
        ("nccl:reduce", "reduce"),
        ("ncclDevKernel_Generic", "collective"),
        ("", "collective"),
    ],
)
def test_the_collective_in_a_name(name, word):
    assert collective_word(name) == word


def test_what_kineto_links_to_a_kernel():
    args = Args(op="_allgather_base", dtype="BFloat16", n_in=8, n_out=16, group="0", group_size=2, seq=5)
    message = message_of_args(args)
    assert message == Message("all_gather", 16, "bfloat16", "0", 2, 5)
    assert message.size_bytes == 32
    assert message_of_args(Args(op="send", n_in=3)).op == "send"
    assert message_of_args(Args(group=7)).group == "7"
    assert message_of_args(Args()) == Message("collective")
    assert Message("all_reduce", 8, "unheard_of").size_bytes == 0


def shaped(dims, types="[]"):
    return Args(dims=msgspec.Raw(dims.encode()), types=msgspec.Raw(types.encode()))


def test_what_shapes_say():
    assert message_of_shapes("gloo:all_reduce", shaped("[[4, 2]]", '["float"]')) == Message("all_reduce", 8, "float")
    assert message_of_shapes("nccl:_all_gather_base", shaped("[[[2], [3]]]", '["", "Half"]')).elements == 5
    assert message_of_shapes("gloo:recv", None) == Message("recv")
    assert message_of_shapes("gloo:barrier", Args()) == Message("barrier")


@pytest.mark.parametrize("dims", ["{", "3", "[[[[]]]", '["x"]', "[" * 2000])
def test_damaged_shapes_are_no_elements(dims):
    assert message_of_shapes("gloo:all_reduce", shaped(dims, "[3]")) == Message("all_reduce")


@pytest.mark.parametrize(
    ("shape", "count"),
    [([], 1), ([3, 2], 6), ([[2], [3, 2]], 8), ([0], 0), ([-1], 0), ([1 << 50], 0), ("x", 0), (None, 0), ([1] * 65, 0),
     ([1 << 43, 1 << 43], 1 << 50)],
)  # fmt: skip
def test_elements_of_a_shape(shape, count):
    assert elements(shape) == count


SHAPES = st.recursive(
    st.integers(-5, 1 << 45) | st.text(max_size=2), lambda inner: st.lists(inner, max_size=4), max_leaves=12
)


@given(SHAPES)
@settings(max_examples=100)
def test_no_shape_is_a_crash_or_a_negative_size(shape):
    assert elements(shape) >= 0


def test_members_as_a_text():
    assert ranks_of("[0, 1, 7]") == (0, 1, 7)
    assert ranks_of("[0, 1, ..., 7]") == ()
    assert ranks_of("0, 1") == ()
    assert ranks_of("") == ()
