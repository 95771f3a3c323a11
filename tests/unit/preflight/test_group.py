"""What a recorded rank's calls look like: operation, what ranks must agree on, bytes for and from each member."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dtk.preflight.calls import Entry
from tests.unit.preflight.one_rank import issued, recorded

RANK, SIZE = 1, 4


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


def recorded_call(call: Callable[[], object]) -> Entry:
    with recorded(RANK, SIZE) as simulated:
        call()
        (entry,) = issued(simulated)
    return entry


CALLS: dict[str, tuple[Callable[[], object], str, tuple[int, ...], tuple[int, ...], tuple[int, ...], int | None]] = {
    "all_reduce": (lambda: dist.all_reduce(ones(3)), "all_reduce", (3,), (), (), None),
    "reduce": (lambda: dist.reduce(ones(3), 2), "reduce", (3,), (), (), 2),
    "broadcast": (lambda: dist.broadcast(ones(3), 0), "broadcast", (12,), (), (), 0),
    "all_gather": (
        lambda: dist.all_gather([ones(2) for _ in range(SIZE)], ones(2)),
        *("all_gather", (SIZE * 8,), (8,), (8,), None),
    ),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(ones(8), ones(2)),
        *("all_gather_into_tensor", (32,), (8,), (8,), None),
    ),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(ones(2), ones(8)),
        *("reduce_scatter_tensor", (8,), (8,), (8,), None),
    ),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(ones(6), ones(6), [0, 1, 2, 3], [3, 1, 1, 1]),
        *("all_to_all_single", (), (12, 4, 4, 4), (0, 4, 8, 12), None),
    ),
    "scatter from another": (lambda: dist.scatter(ones(2), None, src=0), "scatter", (), (8,), (8,), 0),
    "gather to this one": (
        lambda: dist.gather(ones(2), [ones(2) for _ in range(SIZE)], dst=RANK),
        *("gather", (), (8,), (8,), RANK),
    ),
    "barrier": (lambda: dist.barrier(), "barrier", (), (), (), None),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_collective_as_the_matcher_sees_it(name: str) -> None:
    call, op, amounts, sent, taken, root = CALLS[name]
    entry = recorded_call(call)
    assert entry.op == op and not entry.p2p
    assert (entry.wire.amounts, entry.sent, entry.taken, entry.wire.root) == (amounts, sent, taken, root)


def test_the_reduce_op_must_agree_and_the_site_is_the_users() -> None:
    entry = recorded_call(lambda: dist.all_reduce(ones(3), op=dist.ReduceOp.MAX))
    assert entry.wire.reduce_op == "MAX"
    assert entry.wire.dtypes == ("float32",)
    file, _, function = entry.site.partition("\t")
    assert "test_group.py:" in file and function.startswith("test_the_reduce_op_must_agree")


def test_a_transfer_names_its_peer_and_its_tag() -> None:
    with recorded(RANK, SIZE) as simulated:
        dist.send(ones(3), 2, tag=7)
        dist.recv(ones(3), 0)
        dist.recv(ones(3))
        send, receive, anyone = issued(simulated)
        assert simulated.exchange.made_up, "who comes first is not known"
    assert (send.p2p, send.peer, send.tag, send.sent, send.taken) == ("send", 2, 7, (12,), ())
    assert (receive.p2p, receive.peer, receive.sent, receive.taken) == ("recv", 0, (), (12,))
    assert (anyone.p2p, anyone.peer) == ("recv", None)


def test_a_call_is_waited_for_where_the_code_waits() -> None:
    with recorded(RANK, SIZE) as simulated:
        work = dist.all_reduce(ones(1), async_op=True)
        dist.barrier()
        assert work is not None
        work.wait()
        work.wait()
        events = simulated.tape.program().steps().tolist()
    assert events == [0, 1, -2, -1], "issued twice, the barrier waited for first, a wait counted once"


def test_objects_are_calls_of_their_own_name() -> None:
    with recorded(RANK, SIZE) as simulated:
        everybody: list[object] = [None] * SIZE
        dist.all_gather_object(everybody, {"a": 1})
        unknown: list[object] = [None]
        dist.broadcast_object_list(unknown, src=0)
        entries = issued(simulated)
    assert {entry.user_op for entry in entries} == {"all_gather_object", "broadcast_object_list"}
    assert all(entry.sent == () == entry.taken for entry in entries), "lengths of made-up objects say nothing"
    assert everybody == [{"a": 1}] * SIZE and unknown == [None]


def test_calls_of_a_group_count_in_that_group() -> None:
    with recorded(RANK, SIZE) as simulated:
        pair = dist.new_group([1, 3])
        dist.all_reduce(ones(1), group=pair)
        dist.reduce(ones(1), 3, group=pair)
        first, second = issued(simulated)
        groups = simulated.tape.groups
    assert groups[first.group].ranks == (1, 3)
    assert second.wire.root == 1, "a rank of the group, not of the job"
