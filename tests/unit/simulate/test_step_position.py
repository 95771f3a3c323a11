"""Region and block of a step: in forward by hooks, in backward by the number of the autograd node."""

from itertools import groupby
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dtk.parallel.regions import Region
from dtk.simulate.step_position import BEFORE, Places

BLOCKS = 3


class Model(nn.Module):
    """An embedding, blocks that tell where they are, and a head."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places
        self.seen: list[tuple[str, int]] = []
        self.embedding = nn.Linear(2, 2)
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(BLOCKS))
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Note the place in each part."""
        x = self.embedding(x)
        self.seen.append(self.places.now())
        for block in self.blocks:
            x = block(x)
            self.seen.append(self.places.now())
        x = self.head(x)
        self.seen.append(self.places.now())
        return x


class Listening(TorchDispatchMode):  # type: ignore[misc]
    """Notes the block of every operation."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it, and let the operation run."""
        self.seen.append(self.places.now()[1])
        return func(*args, **(kwargs or {}))


@pytest.fixture
def step() -> tuple[Places, Model]:
    places = Places()
    model = Model(places)
    places.watch(list(model.blocks), model)
    return places, model


def region(name: str, op: str | None = None) -> Region:
    return Region(name, op, 0, "")


def test_forward_goes_from_block_to_block(step: tuple[Places, Model]) -> None:
    places, model = step
    places.enter(region("forward"))
    model(torch.ones(1, 2))
    # The last block's hook has run by the time it returns: the place is then behind all blocks.
    assert model.seen == [("forward", at) for at in (BEFORE, 0, 1, BLOCKS, BLOCKS)]
    assert places.in_loss
    places.enter(region("backward"))
    assert places.now() == ("backward", BLOCKS) and not places.in_loss


def test_backward_goes_back_block_by_block(step: tuple[Places, Model]) -> None:
    places, model = step
    places.enter(region("forward"))
    loss = model(torch.ones(1, 2)).sum()
    places.enter(region("backward"))
    with Listening(places) as listening:
        loss.backward()
    assert [block for block, _ in groupby(listening.seen)] == [BLOCKS, 2, 1, 0, BEFORE]


def test_blocks_do_not_move_the_place_outside_forward(step: tuple[Places, Model]) -> None:
    places, model = step
    places.enter(region("optimizer"))
    model(torch.ones(1, 2))
    assert places.now() == ("optimizer", BEFORE)
    assert not places.in_loss


def test_micro_batches_are_counted_and_their_beginnings_reported(step: tuple[Places, Model]) -> None:
    places, _ = step
    begun: list[str] = []
    places.entered = lambda: begun.append(places.region)
    for name in ("forward", "backward", "forward", "log", "clip"):
        places.enter(region(name))
    assert begun == ["forward", "backward", "forward", "clip"], "other regions are no places"
    assert places.micro_batch == 1


def test_collectives_are_a_flag_and_no_place(step: tuple[Places, Model]) -> None:
    places, _ = step
    places.enter(region("backward"))
    gather = region("all_gather", "all_gather")
    places.enter(gather)
    assert places.communicates and places.region == "backward"
    places.exit(gather)
    assert not places.communicates
