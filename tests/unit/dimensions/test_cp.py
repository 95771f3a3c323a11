"""Every token of a sequence lies on one rank, with its position and its target."""

from typing import Any, get_args

import pytest
import torch

from dtk.data.dataset import Batch
from dtk.dimensions.cp import Method, Part
from dtk.parallel.collectives import Axis

LENGTH = 24


def part(rank: int, ranks: int, method: Any) -> Part:
    return Part(Axis("cp", None, rank, ranks), method)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_token_lies_on_one_rank_with_its_position_and_target(method: str, ranks: int) -> None:
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH)
    batch, seen = Batch(tokens, tokens + 1), []
    for rank in range(ranks):
        own, positions = part(rank, ranks, method).own(batch), part(rank, ranks, method).positions(batch)
        assert torch.equal(own.inputs[1], LENGTH + positions)
        assert torch.equal(own.targets, own.inputs + 1)
        assert positions.tolist() == sorted(positions)
        seen += positions.tolist()
    assert sorted(seen) == list(range(LENGTH))


def test_the_ranks_of_a_ring_have_the_same_work() -> None:
    batch = Batch(torch.zeros(1, LENGTH, dtype=torch.int64), torch.zeros(1, LENGTH, dtype=torch.int64))
    keys = {int((part(rank, 4, "ring").positions(batch) + 1).sum()) for rank in range(4)}
    assert len(keys) == 1, "keys that a rank's queries see, over all hops"
