"""The kinds of `optimizer` and `schedule`: what each choice of conf/ is, and keys that only one of them has."""

import dataclasses

import pytest

from dtk.config.compose import compose
from dtk.config.schema.numerics import (
    AdamWConfig,
    ConstantSchedule,
    CosineSchedule,
    CustomOptimizerConfig,
    CustomSchedule,
    SGDConfig,
    WSDSchedule,
)
from dtk.errors import DtkError

TARGET = "torch.optim.Adagrad"


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        (["optimizer=adamw"], AdamWConfig),
        (["optimizer=sgd"], SGDConfig),
        (["optimizer=custom", f"optimizer._target_={TARGET}"], CustomOptimizerConfig),
    ],
)
def test_an_optimizer_has_a_rate_a_decay_and_may_update_in_backward(overrides: list[str], kind: type) -> None:
    optimizer = compose([*overrides, "optimizer.lr=0.5", "optimizer.in_backward=true"]).config.optimizer
    assert type(optimizer) is kind and (optimizer.lr, optimizer.in_backward) == (0.5, True)
    assert {"lr", "weight_decay", "in_backward"} <= {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        (["schedule=constant"], ConstantSchedule),
        (["schedule=cosine"], CosineSchedule),
        (["schedule=wsd"], WSDSchedule),
        (["schedule=custom", "schedule._target_=mine.Schedule"], CustomSchedule),
    ],
)
def test_every_schedule_can_warm_up(overrides: list[str], kind: type) -> None:
    schedule = compose([*overrides, "schedule.warmup_steps=3"]).config.schedule
    assert type(schedule) is kind and schedule.warmup_steps == 3


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["optimizer=sgd", "optimizer.betas=[0.9,0.99]"], "optimizer=adamw"),
        (["optimizer=adamw", "optimizer.momentum=0.9"], "optimizer=sgd"),
        (["optimizer=custom"], "optimizer._target_"),
        (["optimizer.betas=0.9"], "optimizer.betas"),
        (["optimizer.fused=maybe"], "optimizer.fused"),
        (["schedule=cosine", "schedule.decay_steps=2"], "schedule=wsd"),
        (["schedule=constant", "schedule.min_lr_ratio=0.1"], "schedule.min_lr_ratio"),
    ],
)
def test_a_key_of_another_kind_is_refused(overrides: list[str], text: str) -> None:
    with pytest.raises(DtkError, match=text.replace(".", r"\.")):
        compose(overrides)


def test_lists_of_two_configurations_are_two_lists() -> None:
    assert AdamWConfig().betas == [0.9, 0.95] and AdamWConfig().betas is not AdamWConfig().betas
