"""What a step needs, from the configuration: the model's size and FLOPs, its optimizer, its declared collectives."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from dtk.config import schema
from dtk.errors import DtkError
from dtk.parallel.blocks import blocks_of
from dtk.parallel.context import Context
from dtk.train.optimizer import InBackward
from dtk.train.setup import set_up
from tests.unit.train.conftest import config


class Plain(nn.Module):
    """A model of a user's without blocks, that cannot say how it starts."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())  # type: ignore[no-any-return]


CUSTOM = schema.CustomModelConfig(name="mine", _target_=f"{__name__}.Plain", arguments={"width": 6})


def test_sizes_and_flops_are_the_models(alone: Context) -> None:
    parts = set_up(config(), alone)
    assert parts.parameter_count == sum(p.numel() for p in parts.model.parameters())
    assert parts.flops_per_token == parts.model.flops_per_token(8)  # type: ignore[operator]
    assert parts.wrapped is parts.model and parts.runner.collectives(2, clips=True) == []
    assert not any(p.is_meta for p in parts.model.parameters())


def test_every_start_from_a_seed_is_the_same(alone: Context) -> None:
    for model in (config().model, CUSTOM):
        first, again, other = (
            set_up(config(model=model, seed=seed, allow_targets=[CUSTOM._target_]), alone).model for seed in (1, 1, 2)
        )
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_a_custom_model_leaves_the_generator_alone_and_need_not_say_its_flops(alone: Context) -> None:
    state = torch.random.get_rng_state()
    parts = set_up(config(model=CUSTOM, allow_targets=[CUSTOM._target_]), alone)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert parts.flops_per_token is None and parts.parameter_count == 6 * 6 + 6 + 3 * 6 + 3


def test_settings_for_blocks_need_blocks(alone: Context) -> None:
    train = replace(config().train, activation_checkpoint_every=1)
    with pytest.raises(DtkError, match="works on the blocks of a model, and model=mine has none"):
        set_up(config(model=CUSTOM, train=train, allow_targets=[CUSTOM._target_]), alone)


@pytest.mark.parametrize(("every", "recomputed"), [(1, [True, True]), (2, [True, False]), (0, [False, False])])
def test_every_kth_block_is_recomputed(alone: Context, every: int, recomputed: list[bool]) -> None:
    parts = set_up(config(train=replace(config().train, activation_checkpoint_every=every)), alone)
    assert ["forward" in vars(block) for block in blocks_of(parts.model)] == recomputed


def test_updates_inside_backward_have_an_optimizer_of_their_own(alone: Context) -> None:
    settings: Any = config(optimizer=schema.SGDConfig(lr=0.1), train=replace(config().train, clip_norm=None))
    assert type(set_up(settings, alone).optimizer) is torch.optim.SGD
    inside = config(optimizer=schema.AdamWConfig(in_backward=True), train=replace(config().train, clip_norm=None))
    assert isinstance(set_up(inside, alone).optimizer, InBackward)
