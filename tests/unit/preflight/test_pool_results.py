"""What simulated ranks bring to a call, put together."""

import torch

from dtk.preflight.exchange import How, Offer, to_bytes
from dtk.preflight.pool import Results

KEY = ("0", 1)


def offer(rank: int, how: How, *parts: torch.Tensor, op: str = "SUM", root: int = -1, agreed: str = "same") -> Offer:
    dtypes = tuple(str(part.dtype).removeprefix("torch.") for part in parts)
    takers = 2 if root < 0 else 1
    return Offer(KEY, rank, (4, 7), (agreed,), how, op, root, takers, dtypes, tuple(to_bytes(part) for part in parts))


def taken(offer: Offer, other: Offer, rank: int) -> list[list[float]]:
    table = Results()
    table.put(offer)
    assert not table.complete(KEY, (4, 7))
    table.put(other)
    assert table.complete(KEY, (4, 7))
    answer = table.take(KEY, rank)
    assert answer is not None
    return [torch.frombuffer(bytearray(part), dtype=torch.float32).tolist() if part else [] for part in answer]


def test_results_are_those_of_the_collectives() -> None:
    ones, twos = torch.ones(2), 2 * torch.ones(2)
    assert taken(offer(4, "reduce", ones), offer(7, "reduce", twos), 7) == [[3, 3]]
    assert taken(offer(4, "reduce", ones, op="AVG"), offer(7, "reduce", twos, op="AVG"), 4) == [[1.5, 1.5]]
    assert taken(offer(4, "reduce", ones, op="MAX"), offer(7, "reduce", twos, op="MAX"), 4) == [[2, 2]]
    assert taken(offer(4, "all", ones), offer(7, "all", twos), 4) == [[1, 1], [2, 2]]
    assert taken(offer(4, "mine", ones, twos), offer(7, "mine", ones, ones), 7) == [[2, 2], [1, 1]]
    assert taken(offer(4, "reduce_mine", ones, twos), offer(7, "reduce_mine", ones, ones), 7) == [[3, 3]]
    assert taken(offer(4, "root", ones, root=4), offer(7, "root", root=4), 7) == [[1, 1]]
    assert taken(offer(4, "root_mine", ones, twos, root=4), offer(7, "root_mine", root=4), 7) == [[2, 2]]


def test_what_cannot_be_reduced_gives_nothing() -> None:
    assert taken(offer(4, "reduce", torch.ones(2)), offer(7, "reduce", torch.ones(3)), 4) == [[]]
    assert taken(offer(4, "reduce", torch.ones(2), op="BAND"), offer(7, "reduce", torch.ones(2), op="BAND"), 4) == [[]]


def test_different_calls_never_complete_and_missing_values_are_known_to_be_missing() -> None:
    table = Results()
    table.put(offer(4, "reduce", torch.ones(1)))
    table.put(offer(7, "reduce", torch.ones(1), agreed="another"))
    assert not table.complete(KEY, (4, 7))
    table = Results()
    table.put(offer(4, "all", torch.ones(1)))
    table.put(offer(7, "all", torch.ones(1))._replace(parts=None))
    assert table.take(KEY, 4) is None
