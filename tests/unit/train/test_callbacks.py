"""Callbacks: when a run ends early, whose errors end it, and what a resumed run gets back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from diagnostics.contract.artifacts import CHECKPOINT_INFO
from diagnostics.contract.mesh import Mesh
from dtk.config.schema import CallbackConfig, PrecisionConfig
from dtk.errors import DtkError
from dtk.strategies.single import Single, SingleConfig
from dtk.train.callbacks import Callback, Callbacks, EarlyStopping, Training, build_callbacks
from tests.unit.rank_threads import context, on_ranks
from tests.unit.train.conftest import config


@pytest.fixture
def training() -> Training:
    model = nn.Linear(1, 1)
    place: Any = on_ranks(1, lambda rank: context(rank, Mesh()))[0]
    strategy, nothing_is_logged = Single(SingleConfig(), place, PrecisionConfig()), cast(Any, None)
    return Training(config(), place, model, torch.optim.SGD(model.parameters()), strategy, nothing_is_logged)


@pytest.mark.parametrize(
    ("goal", "values", "stops_after"),
    [
        ("minimize", [3.0, 2.0, 2.5, 1.9, 2.0, 2.1], 6),
        ("maximize", [0.1, 0.3, 0.2, 0.25], 4),
        ("minimize", [3.0, 2.0, 1.0, 0.5], None),
        ("minimize", [3.0, float("nan"), float("nan")], 3),
    ],
)
def test_a_run_ends_when_its_figure_no_longer_improves(
    training: Training, goal: Any, values: list[float], stops_after: int | None
) -> None:
    stopping = EarlyStopping(metric="score", patience=2, goal=goal)
    for number, value in enumerate(values, 1):
        stopping.after_evaluation(training, number, {"score": value})
        assert bool(training.reason) == (number == stops_after)
    if goal == "maximize":
        assert training.reason == "score has not improved on 0.3000 in 2 evaluations"


def test_a_small_improvement_is_none(training: Training) -> None:
    stopping = EarlyStopping(patience=1, least=0.1)
    for loss in (2.0, 1.95):
        stopping.after_evaluation(training, 1, {"validation_loss": loss})
    assert "2.0000 in 1" in training.reason


def test_counting_goes_on_in_a_resumed_run(training: Training) -> None:
    first, second = EarlyStopping(patience=2), EarlyStopping(patience=2)
    assert json.loads(json.dumps(first.state())) == {"best": None, "waited": 0}
    for loss in (1.0, 2.0):
        first.after_evaluation(training, 1, {"validation_loss": loss})
    second.restore(json.loads(json.dumps(first.state())))
    second.after_evaluation(training, 3, {"validation_loss": 2.0})
    assert training.reason


@pytest.mark.parametrize("arguments", [{"patience": 0}, {"goal": "less"}])
def test_wrong_arguments_are_one_line(arguments: dict[str, Any]) -> None:
    with pytest.raises(DtkError, match=r"patience is 1 or more|goal is minimize or maximize"):
        EarlyStopping(**arguments)


def test_a_figure_that_no_evaluation_has(training: Training) -> None:
    with pytest.raises(DtkError, match="no evaluation has bleu - they have validation_loss"):
        EarlyStopping(metric="bleu").after_evaluation(training, 1, {"validation_loss": 1.0})


class Raising(Callback):
    def __init__(self) -> None:
        self.failures: list[str] = []

    def before_step(self, training: Training, step: int) -> None:
        raise ValueError(f"step {step}")

    def on_failure(self, training: Training, error: BaseException) -> None:
        self.failures.append(str(error))
        raise RuntimeError("again")

    def restore(self, state: Any) -> None:
        raise KeyError("best")


def test_an_error_ends_the_run_unless_told_to_keep_going(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("dtk.train.callbacks.report", lambda topic, problem: said.append(topic))
    kept, ending = Raising(), Raising()
    Callbacks(training, [("kept", kept, True)]).each(lambda callback, run: callback.before_step(run, 3))
    assert said == ["callback kept"]
    callbacks = Callbacks(training, [("ending", ending, False)])
    with pytest.raises(ValueError, match="step 4"), callbacks.failures():
        callbacks.each(lambda callback, run: callback.before_step(run, 4))
    assert ending.failures == ["step 4"], "what it raises itself is reported only"


def test_states_go_to_the_callbacks_that_wrote_them(training: Training, tmp_path: Path) -> None:
    stopping = EarlyStopping()
    callbacks = Callbacks(training, [("a.Early", stopping, False)])
    assert callbacks.state() == [["a.Early", {"best": None, "waited": 0}]] and callbacks.training.reason == ""
    callbacks.restore(tmp_path)  # A rehearsed run continues from a checkpoint that is not there.
    info = tmp_path / CHECKPOINT_INFO
    info.write_text(json.dumps({"callbacks": [["another.Early", {"best": 1.0, "waited": 5}]]}))
    callbacks.restore(tmp_path)
    assert stopping.waited == 0
    info.write_text(json.dumps({"callbacks": [["a.Early", {"best": 1.0, "waited": 5}]]}))
    callbacks.restore(tmp_path)
    assert (stopping.best, stopping.waited) == (1.0, 5)
    with pytest.raises(DtkError, match=r"a.Early cannot use its state in .*KeyError: 'best'"):
        Callbacks(training, [("a.Early", Raising(), False)]).restore(tmp_path)


def test_they_are_built_from_the_configuration(training: Training) -> None:
    section = CallbackConfig(_target_="dtk.train.callbacks.EarlyStopping", arguments={"patience": 7}, keep_going=True)
    built = build_callbacks(replace(training, config=config(callbacks=[section])))
    ((target, callback, keep_going),) = built.members
    assert isinstance(callback, EarlyStopping) and callback.patience == 7 and keep_going
    assert target == section._target_ and built.training.reason == ""


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("EMA", {"decay": 1.0}, "decay is at least 0 and below 1"),
        ("Samples", {"prompts": [""]}, "prompts are texts that are not empty"),
        ("Samples", {"tokens": 0}, "tokens at least 1"),
        ("BestCheckpoint", {"goal": "more"}, "goal is minimize or maximize"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_the_built_in_ones_are_one_line(
    training: Training, name: str, arguments: dict[str, Any], message: str
) -> None:
    section = CallbackConfig(_target_=f"dtk.train.builtin.{name}", arguments=arguments)
    with pytest.raises(DtkError, match=message):
        build_callbacks(replace(training, config=config(callbacks=[section])))
