"""What one simulated rank leaves for the others, and what it gets from them."""

import pickle
from multiprocessing import Pipe

import pytest
import torch

from dtk.preflight.calls import Tape
from dtk.preflight.exchange import (
    ASK,
    MAX_BYTES,
    MAX_BYTES_KEPT,
    OFFER,
    Exchange,
    Expected,
    How,
    Issued,
    Offer,
    SimulatedRank,
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


def offered(key: tuple[object, ...], value: torch.Tensor) -> Offer:
    return Offer(key, 0, (0, 1), (), "root", "", 0, 1, ("int64",), (to_bytes(value),))


def test_the_second_send_of_a_pair_meets_its_second_receive() -> None:
    sender = SimulatedRank(Exchange(0), 2, 1)
    for value in (4, 5):
        sender.send("0", 1, 0, [torch.tensor([value])])
    sender.send("0", 1, 9, [torch.tensor([6])])
    receiver = SimulatedRank(Exchange(1, offers=dict(sender.exchange.given)), 2, 1)
    got = [torch.zeros(1, dtype=torch.int64) for _ in range(3)]
    for tensor, tag in zip(got, (0, 9, 0), strict=True):
        for expected in receiver.receive("0", 0, tag, [tensor]):
            expected.fetch()
            assert expected.fetched
    assert [int(tensor) for tensor in got] == [4, 6, 5]


def test_data_is_not_carried_from_one_simulation_to_the_next() -> None:
    sender = SimulatedRank(Exchange(0), 2, 1)
    sender.send("0", 1, 0, [torch.ones(3)])
    assert not sender.exchange.given
    assert SimulatedRank(Exchange(1), 2, 1).receive("0", 0, 0, [torch.ones(3)]) == []


def test_a_value_of_a_later_rank_is_missed() -> None:
    exchange, tensor = Exchange(1), torch.tensor([3])
    expected = Expected(exchange, ("group", 1), (2,), [tensor])
    expected.fetch()
    assert exchange.missed == {2} and int(tensor) == 3


def test_waiting_fetches_the_results_of_the_group_up_to_its_own() -> None:
    values = [torch.tensor([value]) for value in (7, 8, 9)]
    expected = {("group", n): offered(("group", n), value) for n, value in enumerate(values)}
    exchange, outputs = Exchange(1, offers=expected), [torch.zeros(1, dtype=torch.int64) for _ in values]
    due: list[Expected] = []
    works = []
    for number, output in enumerate(outputs):
        due.append(Expected(exchange, ("group", number), (0,), [output]))
        works.append(Issued(Tape(), number, [output], due))
    assert works[1].wait()
    assert [int(output) for output in outputs] == [7, 8, 0], "what comes later is not asked for"
    assert works[0].is_completed() and works[2].wait()
    assert [int(output) for output in outputs] == [7, 8, 9]
    assert due == []


def test_a_wait_is_on_the_tape_and_a_receive_knows_its_sender() -> None:
    tape = Tape()
    work = Issued(tape, 3, [torch.ones(2)])
    assert work.receives(5, []) is work and work._source_rank() == 5
    work.synchronize()
    assert tape.program().steps().tolist() == [-4]
    assert work.result()[0].tolist() == [1.0, 1.0]


def test_a_future_outside_backward_is_a_wait() -> None:
    tape = Tape()
    tensor = torch.ones(1)
    assert Issued(tape, 0, [tensor]).get_future().wait()[0] is tensor
    assert tape.program().steps().tolist() == [-1]
