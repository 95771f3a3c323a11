"""What one simulated rank leaves for the others, and what it gets from them."""

import pickle
from multiprocessing import Pipe

import pytest
import torch

from dtk.preflight.exchange import (
    ASK,
    MAX_BYTES,
    MAX_BYTES_KEPT,
    OFFER,
    Exchange,
    How,
    Offer,
    dtypes_of,
    fill,
    from_bytes,
    packed,
    part_of,
    to_bytes,
)

KEY = ("group", 1)


def offer(parts: tuple[bytes, ...] | None, how: How = "root", root: int = 4) -> Offer:
    return Offer(KEY, 4, (4, 7), (), how, "", root, 1, ("int64",), parts)


def test_a_later_rank_gets_what_an_earlier_one_gave() -> None:
    first = Exchange(4)
    first.offer(offer((b"1", b"2"), "root_mine"))
    second = Exchange(7, offers=dict(first.given))
    assert second.ask(KEY, (4,)) == (b"2",)
    assert not second.missed


def test_what_a_later_rank_would_give_is_noted() -> None:
    exchange = Exchange(4, done=frozenset({2}))
    assert exchange.ask(KEY, (7,)) is None
    assert exchange.ask(("other", 1), (2,)) is None
    assert exchange.missed == {7}, "rank 2 is done and gave nothing"


def test_members_that_bring_nothing_leave_nothing() -> None:
    exchange = Exchange(7)
    exchange.offer(offer(()))
    exchange.offer(offer(None))
    assert not exchange.given


CARRIED = {
    "flags of one rank": (torch.tensor([True]), "root", True),
    "sizes of one rank": (torch.tensor([3]), "root_mine", True),
    "sums": (torch.tensor([3]), "reduce", False),
    "fractions": (torch.ones(1), "root", False),
    "large tensors": (torch.zeros(MAX_BYTES_KEPT + 1, dtype=torch.uint8), "root", False),
    "tensors without values": (torch.zeros(1, dtype=torch.int64, device="meta"), "root", False),
}


@pytest.mark.parametrize("name", CARRIED)
def test_what_travels_between_ranks_that_are_simulated_one_after_another(name: str) -> None:
    tensor, how, carried = CARRIED[name]
    assert Exchange(0).carries(how, [tensor]) == carried  # type: ignore[arg-type]


def test_live_ranks_ask_their_parent() -> None:
    here, there = Pipe()
    exchange = Exchange(4, pipe=there)
    assert exchange.live and exchange.carries("all", [torch.ones(1)])
    exchange.offer(offer((b"1",)))
    message = here.recv_bytes()
    assert (message[:1], Offer(*pickle.loads(message[1:]))) == (OFFER, offer((b"1",)))  # noqa: S301
    here.send_bytes(pickle.dumps((False, (b"5",))))
    assert exchange.ask(KEY, (7,)) == (b"5",)
    assert here.recv_bytes()[:1] == ASK
    here.send_bytes(pickle.dumps((False, None)))
    assert exchange.ask(KEY, (7,)) is None and exchange.made_up
    here.send_bytes(pickle.dumps((True, None)))
    assert exchange.ask(KEY, (7,)) is None and exchange.adrift
    assert exchange.ask(KEY, (7,)) is None, "nobody is asked any more"
    exchange.offer(offer((b"1",)))
    assert [here.recv_bytes()[:1] for _ in range(2)] == [ASK, ASK]
    assert not here.poll()


def test_not_a_number_spreads() -> None:
    watching = Exchange(0, watches=True)
    watching.spoil(("0", 1), [torch.ones(2)])
    watching.spoil(("0", 2), [torch.tensor([1.0, float("inf")])])
    watching.spoil(("0", 3), [torch.tensor([1])])
    assert watching.spread == {("0", 2)}
    spoiled, tensor = Exchange(1, spoiled=frozenset(watching.spread)), torch.ones(2)
    spoiled.spoil(("0", 2), [tensor])
    assert torch.isnan(tensor).all()


def test_parts_and_values_survive_the_way() -> None:
    values = torch.tensor([[1.5, 2.5], [3.5, 4.5]]).t()
    assert from_bytes(to_bytes(values), torch.float32).tolist() == values.flatten().tolist()
    assert part_of(offer((b"1", b"2")), 7) == (b"1", b"2")
    assert part_of(offer(None, "root_mine"), 7) is None
    assert dtypes_of([torch.ones(1), torch.ones(1, dtype=torch.bool)]) == ("float32", "bool")
    assert packed([torch.zeros(MAX_BYTES + 1, dtype=torch.uint8, device="meta")]) is None
    target = [torch.zeros(2), torch.zeros(3)]
    fill(target, (to_bytes(torch.ones(2)), to_bytes(torch.ones(2))))
    assert [item.tolist() for item in target] == [[1, 1], [0, 0, 0]], "what does not fit is left alone"
