"""Averaged weights, in a real loop of one process."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dtk.config import schema
from dtk.errors import DtkError
from dtk.train.builtin import EMA
from dtk.train.callbacks import Callback
from tests.unit.train.conftest import Build, config

DECAY = 0.7


class Weights(Callback):
    """Keeps the weights after each step, and those that an evaluation saw."""

    def __init__(self) -> None:
        self.after: list[list[Tensor]] = []
        self.evaluated: list[list[Tensor]] = []

    def after_step(self, training: Any, step: int, record: Any) -> None:
        """Keep a copy."""
        self.after.append([value.detach().clone() for value in training.model.parameters()])

    def before_evaluation(self, training: Any, step: int) -> None:
        """Keep what is evaluated; it comes after EMA in the list."""
        self.evaluated.append([value.detach().clone() for value in training.model.parameters()])


def callback(target: str, **arguments: Any) -> Any:
    return schema.CallbackConfig(_target_=target, arguments=arguments)


def averages(weights: list[list[Tensor]]) -> list[Tensor]:
    """The average by its definition: weights of powers of the decay, which add up to 1."""
    shares = torch.tensor([DECAY**age for age in range(len(weights))][::-1])
    shares /= shares.sum()
    return [
        sum(share * value for share, value in zip(shares, values, strict=True)) for values in zip(*weights, strict=True)
    ]  # type: ignore[misc]


@pytest.mark.parametrize("evaluate", [True, False])
def test_averages_are_evaluated_and_the_weights_come_back(build: Build, evaluate: bool) -> None:
    train = schema.TrainConfig(steps=4, global_batch_size=4, micro_batch_size=2, evaluate_every=2, log_every=1)
    listed = [callback("dtk.train.builtin.EMA", decay=DECAY, evaluate=evaluate), callback(f"{__name__}.Weights")]
    loop = build(config(train=train, callbacks=listed, allow_targets=[f"{__name__}.*"]))
    loop.run()
    seen = next(member for _, member, _ in loop.callbacks.members if isinstance(member, Weights))
    assert len(seen.after) == 4 and seen.evaluated
    for number, evaluated in zip((2, 4), seen.evaluated, strict=True):
        expected = averages(seen.after[:number]) if evaluate else seen.after[number - 1]
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(evaluated, expected, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(seen.after[2], seen.evaluated[0], strict=True))
    exported = averages(seen.after)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(loop.parts.model.parameters(), exported, strict=True))


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0])
def test_a_decay_that_is_none(decay: float) -> None:
    with pytest.raises(DtkError, match="at least 0 and below 1"):
        EMA(decay)
