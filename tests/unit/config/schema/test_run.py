"""Sections of the run itself: the kinds of tracker, callbacks as a list, and what their types refuse."""

import pytest

from dtk.config.compose import compose
from dtk.config.schema.run import CallbackConfig, CustomTracker, NoTracker, TensorboardTracker, WandbTracker
from dtk.errors import DtkError


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        ([], NoTracker),
        (["tracker=wandb", "tracker.tags=[a,b]"], WandbTracker),
        (["tracker=tensorboard"], TensorboardTracker),
        (["tracker=custom", "tracker._target_=mine.Tracker", "tracker.arguments={uri: x}"], CustomTracker),
    ],
)
def test_a_tracker_is_of_its_kind(overrides: list[str], kind: type) -> None:
    assert type(compose(overrides).config.tracker) is kind


def test_callbacks_are_typed_one_by_one() -> None:
    first, second = compose(
        ["callbacks=[{_target_: a.B, arguments: {n: 1}}, {_target_: c.D, keep_going: true}]"]
    ).config.callbacks
    assert first == CallbackConfig(_target_="a.B", arguments={"n": 1})
    assert second == CallbackConfig(_target_="c.D", keep_going=True)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["tracker=tensorboard", "tracker.project=x"], "tracker=wandb"),
        (["tracker=wandb", "tracker.mode=sometimes"], "tracker.mode"),
        (["callbacks=[{arguments: {}}]"], "_target_"),
        (["callbacks=[{_target_: a.B, keepgoing: true}]"], "keepgoing"),
        (["train.steps=ten"], "train.steps"),
        (["train.steps=2.5"], "train.steps"),
        (["train.epochs=many"], "train.epochs"),
        (["record.level=loud"], "record.level"),
        (["record.flight_entry=1"], "record.flight_entries"),
        (["watch.enabled=1"], "watch.enabled"),
        (["checkpoint.keep=null"], "checkpoint.keep"),
        (["nccl.variables=[NCCL_DEBUG]"], "nccl.variables"),
        (["task=speech"], "task"),
    ],
)
def test_a_wrong_key_or_type_names_the_key(overrides: list[str], text: str) -> None:
    with pytest.raises(DtkError, match=text.replace(".", r"\.")):
        compose(overrides)


def test_a_number_may_be_whole_where_a_fraction_is_meant() -> None:
    config = compose(["train.epochs=2", "record.telemetry_every_s=3"]).config
    assert (config.train.epochs, config.record.telemetry_every_s) == (2, 3)
