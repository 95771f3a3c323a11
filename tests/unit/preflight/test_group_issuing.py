"""What a recorded call brings to the others: offers, new groups, and the user's frames, innermost first."""

import sys
from types import FrameType

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dtk.preflight import group as frames
from dtk.preflight.calls import NEW_GROUP
from dtk.preflight.exchange import Exchange, from_bytes
from dtk.preflight.group import made_group
from tests.unit.preflight.one_rank import issued, recorded


def test_the_root_leaves_whole_numbers_for_ranks_that_come_after_it() -> None:
    with recorded(0, 3) as simulated:
        dist.broadcast(torch.tensor([4, 5]), 0)
        dist.broadcast(torch.ones(2), 0)  # Data: it stays made up.
        dist.broadcast(torch.tensor([6]), 1)
        given = list(simulated.exchange.given.values())
    (offer,) = given
    assert (offer.rank, offer.root, offer.how, offer.takers, offer.members) == (0, 0, "root", 2, (0, 1, 2))
    assert offer.parts is not None and from_bytes(offer.parts[0], torch.int64).tolist() == [4, 5]


def test_a_rank_gets_what_the_root_left() -> None:
    with recorded(0, 3) as first:
        dist.broadcast(torch.tensor([4, 5]), 0)
        dist.scatter(torch.zeros(1, dtype=torch.int64), [torch.tensor([n]) for n in (10, 11, 12)], src=0)
    with recorded(2, 3, Exchange(2, offers=dict(first.exchange.given))):
        flags, mine = torch.zeros(2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        dist.broadcast(flags, 0)
        dist.scatter(mine, None, src=0)
    assert flags.tolist() == [4, 5] and mine.tolist() == [12]


def test_what_a_later_rank_would_send_is_noted() -> None:
    with recorded(0, 3) as simulated:
        dist.broadcast(torch.tensor([1]), 2)
        assert simulated.exchange.missed == {2}


def test_nothing_is_carried_in_a_group_of_one() -> None:
    with recorded(0, 1) as simulated:
        dist.broadcast(torch.tensor([1]), 0)
        assert not simulated.exchange.given


def test_values_that_are_not_numbers_are_noted_and_spread() -> None:
    with recorded(0, 2, Exchange(0, watches=True)) as first:
        dist.all_reduce(torch.tensor([1.0]))
        dist.all_reduce(torch.tensor([float("nan")]))
        spread = frozenset(first.exchange.spread)
    assert {position for _, position in spread} == {2}
    with recorded(1, 2, Exchange(1, spoiled=spread)):
        healthy, spoiled = torch.ones(1), torch.ones(1)
        dist.all_reduce(healthy)
        dist.all_reduce(spoiled)
    assert healthy.isfinite().all() and spoiled.isnan().all()


def new_group_calls(*groups: tuple[list[int], str]) -> list[object]:
    with recorded(0, 4) as simulated:
        for ranks, desc in groups:
            made_group(ranks, desc)
        assert simulated.new_groups == [(tuple(ranks), desc) for ranks, desc in groups]
        return [(entry.op, entry.wire) for entry in issued(simulated)]


def test_making_a_group_is_a_call_that_all_ranks_must_make_alike() -> None:
    ((op, _),) = new_group_calls(([0, 1], "first"))
    assert op == NEW_GROUP
    assert new_group_calls(([0, 1], "first")) == new_group_calls(([0, 1], "another name"))
    others = [new_group_calls((ranks, "")) for ranks in ([0, 1], [1, 0], [0, 2], [0, 1, 2], [0])]
    assert len({str(wires) for wires in others}) == len(others)


def test_a_group_is_waited_for_at_once() -> None:
    with recorded(0, 4) as simulated:
        made_group([1, 2], "of others")
        assert simulated.tape.program().steps().tolist() == [0, -1]


def here() -> FrameType:
    return sys._getframe(1)


def functions(text: str) -> list[str]:
    return [site.partition("\t")[2] for site in text.splitlines()]


def inner() -> str:
    return frames.stack_of(here())


def outer() -> str:
    return inner()


def test_frames_are_told_from_the_innermost_on() -> None:
    sites = frames.stack_of(here()).splitlines()
    assert sites[0].startswith(f"{__file__}:") and functions(outer())[:3] == ["inner", "outer", functions(sites[0])[0]]


def test_the_stack_ends_at_what_called_the_ranks_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "outermost", outer.__code__)
    assert functions(outer()) == ["inner"]


def test_torch_is_left_out_but_for_backward() -> None:
    seen: list[str] = []
    weight = torch.nn.Parameter(torch.ones(2))
    weight.register_hook(lambda gradient: seen.append(frames.stack_of(here())))
    weight.sum().backward()
    names = functions(seen[0])
    assert "Tensor.backward" in names and "backward" in names
    assert not any("_engine" in name for name in names)


def test_a_call_inside_an_object_collective_is_its_part() -> None:
    assert frames.user_call(here()) == ""
    with recorded(0, 2) as simulated:
        dist.all_reduce(torch.ones(1))
        dist.all_gather_object([None, None], "x")
        names = [entry.user_op for entry in issued(simulated)]
    assert names[0] == "" and set(names[1:]) == {"all_gather_object"}
    assert c10d.__file__.startswith(torch.__path__[0])
