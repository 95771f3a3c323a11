"""What each function of torch.distributed asks for, from its arguments however they are given."""

import inspect

import pytest
import torch
from torch.distributed import distributed_c10d as c10d

from dtk.record.signatures import KINDS, OBJECTS, SUM

T, U = torch.ones(4, dtype=torch.float32), torch.ones(8, dtype=torch.float32)
MAX = torch.distributed.ReduceOp.MAX


def call(name, *args, **kwargs):
    return KINDS[name].extract(*args, **kwargs)


@pytest.mark.parametrize("name", [name for name in KINDS if hasattr(c10d, name)])
def test_every_parameter_of_torch_is_taken_by_its_name(name):
    """A parameter that torch adds would make the call unknown, and its rank unsound."""
    parameters = inspect.signature(inspect.unwrap(getattr(c10d, name))).parameters
    inspect.signature(KINDS[name].extract).bind(**dict.fromkeys(parameters))


def test_what_is_one_on_the_wire():
    into, gather = KINDS["all_gather_into_tensor"], KINDS["all_gather"]
    assert into.wire == gather.wire == KINDS["_all_gather_base"].wire
    assert KINDS["reduce_scatter_tensor"].wire == KINDS["reduce_scatter"].wire
    assert {name for name, kind in KINDS.items() if kind.p2p} == {"send", "recv", "isend", "irecv"}
    assert not set(OBJECTS) & set(KINDS)


def test_elements_where_types_must_agree_and_bytes_where_not():
    assert {name for name, kind in KINDS.items() if kind.typed} == {
        "all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single",
        "reduce_scatter_tensor", "_reduce_scatter_base",
    }  # fmt: skip
    assert call("all_reduce", T).amount == 4
    assert call("broadcast", T, 0).amount == 16
    assert call("all_gather", [T, U], T).amount == 48
    assert call("all_gather_into_tensor", U, T).amount == 32
    assert call("reduce_scatter_tensor", T, U).amount == 8
    assert call("reduce_scatter", T, [T, U]).amount == 12
    assert call("all_reduce_coalesced", [T, U]).amount == 12
    assert call("all_reduce_coalesced", T).amount == 4
    assert call("all_gather_coalesced", [[T]], [T, U]).amount == 48
    assert call("gather", T).amount == call("all_to_all", [T], [U]).amount == -1, "ranks may bring other sizes"


@pytest.mark.parametrize(
    ("given", "root"),
    [(((T, 3), {}), (3, None)), (((T,), {"src": 3}), (3, None)), (((T,), {"group_src": 1}), (None, 1)),
     (((T,), {}), (None, None))],
)  # fmt: skip
def test_a_root_is_given_globally_or_within_the_group(given, root):
    assert call("broadcast", *given[0], **given[1]).root == root
    assert call("scatter", T, **given[1]).root in (root, (None, None))


def test_the_reduction_is_the_sum_unless_said_otherwise():
    assert call("all_reduce", T).reduce_op == SUM
    assert call("reduce", T, 0, MAX).reduce_op == MAX
    assert call("reduce_scatter_tensor", T, U, op=MAX).reduce_op == MAX
    assert call("all_gather", [T], T).reduce_op is None


def test_who_returns_at_once():
    assert not call("all_reduce", T).asynchronous
    assert call("all_reduce", T, async_op=True).asynchronous
    assert [call(name, T, 1).asynchronous for name in ("send", "isend", "recv", "irecv")] == [False, True, False, True]
    assert not call("monitored_barrier").asynchronous


def test_tensors_on_the_side_that_they_are_on():
    sent, received = call("send", T, 1, tag=7), call("recv", T)
    assert (sent.inputs, sent.outputs, sent.root, sent.tag) == ((T,), (), (1, None), 7)
    assert (received.inputs, received.outputs, received.root) == ((), (T,), (None, None))
    assert call("gather", T, None, 0).outputs == ()
    assert call("gather", T, [T, U], 0).outputs == [T, U]
    assert call("scatter", T, [U], 0).inputs == [U]
    assert call("scatter", T, None, 0).inputs == ()


def test_splits_of_all_to_all():
    assert call("all_to_all_single", U, T).splits == [[], []]
    assert call("all_to_all_single", U, T, [8], [4]).splits == [[4], [8]], "what goes out first"
    assert call("all_to_all", [U, T], [T, T]).splits == [[4, 4], [8, 4]]
    assert call("all_reduce", T).splits is None


def test_arguments_that_torch_refuses_too():
    for arguments in ((), (T, 1, 2, 3, 4, 5, 6)):
        with pytest.raises(TypeError):
            call("all_reduce", *arguments)
    with pytest.raises(TypeError):
        call("broadcast", T, root=3)
