"""Values that a rank leaves and gets, by group, pair and tag; works that fetch them when somebody waits."""

import torch

from dtk.preflight.calls import Tape
from dtk.preflight.exchange import Exchange, Offer, to_bytes
from dtk.preflight.simulated_rank import Expected, Issued, SimulatedRank


def offer(key: tuple[object, ...], value: torch.Tensor) -> Offer:
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
    expected = {("group", n): offer(("group", n), value) for n, value in enumerate(values)}
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
