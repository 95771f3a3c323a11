"""User code at fixed points of a run: the base class, its arguments, and `EarlyStopping`.

    callbacks:
      - {_target_: dtk.train.callbacks.EarlyStopping, arguments: {patience: 3}}

Every rank calls its own instance at the same points of the same steps: a collective must be issued on every rank.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics.contract.artifacts import CHECKPOINT_INFO
from dtk.config.instantiate import instantiate
from dtk.config.schema import Config
from dtk.errors import Errors
from dtk.parallel.context import Context
from dtk.parallel.regions import region
from dtk.record.guard import report
from dtk.record.recorder import Recorder
from dtk.sharding.base import Strategy

_errors = Errors(__file__)
Goal = Literal["minimize", "maximize"]


@dataclass(slots=True)
class Training:
    """What a callback can access of a run on its rank."""

    config: Config
    """Resolved configuration; must not be modified."""
    context: Context
    """This rank: `rank`, `world_size`, `device`, `mesh`."""
    model: nn.Module
    """The unwrapped model. Under FSDP its parameters are DTensors, of which this rank holds a shard."""
    optimizer: Optimizer
    strategy: Strategy
    """How model states are distributed; callbacks may use `gradient_norm` and `release`."""
    recorder: Recorder
    reason: str = ""
    """Why a callback of this rank requested a stop; empty if none did."""
    keep_step: int | None = None
    """Step whose checkpoint is kept in addition to the newest ones. If it is set after the evaluation of a step, on
    every rank, a checkpoint of that step is saved too."""

    def log(self, step: int, **figures: Any) -> None:
        """Add a record of a step (counted from 1) in JSON values to metrics.jsonl and the tracker, on rank 0 only."""
        self.recorder.metrics({"attempt": self.recorder.attempt, "step": step, **figures})

    def stop(self, reason: str) -> None:
        """Request the end of the run: all ranks stop after the next step, save a checkpoint, and it is finished.

        `reason` is one line for status.json and the terminal.
        """
        self.reason = self.reason or reason


class Callback:
    """The base class of callbacks; override the methods that you need. Every method is called on every rank."""

    def before_step(self, training: Training, step: int) -> None:
        """Run before the data of a step (counted from 1) is fetched."""

    def before_update(self, training: Training, step: int) -> None:
        """Run after the gradients of a step (counted from 1) are summed over ranks and micro-batches, before clipping.

        With fp16 they are still multiplied by the loss scale.
        """

    def after_step(self, training: Training, step: int, record: Mapping[str, Any] | None) -> None:
        """Run after the optimizer's update.

        Args:
            training: the run; the gradients have been freed.
            step: counted from 1.
            record: the record written to metrics.jsonl (`loss`, `grad_norm`, `tokens_per_s`, ...), the same on every
                rank except for memory and times; None for a step that does not log.
        """

    def before_evaluation(self, training: Training, step: int) -> None:
        """Run before an evaluation; `step` is the number of finished steps."""

    def after_evaluation(self, training: Training, step: int, figures: Mapping[str, float]) -> None:
        """Run after an evaluation, when `step` steps are finished.

        `figures`: `validation_loss` (nats per valid target), `validation_accuracy`, ...; the same on every rank.
        """

    def after_checkpoint(self, training: Training, step: int) -> None:
        """Run when the checkpoint of this step is staged; it may not be on disk yet."""

    def at_end(self, training: Training) -> None:
        """Run when training is finished and its last checkpoint is written, before the weights are exported."""

    def on_failure(self, training: Training, error: BaseException) -> None:
        """Run when this rank fails, before the other ranks are terminated. Collectives are no longer possible."""

    def state(self) -> dict[str, Any]:
        """Return the state of this callback as JSON values; rank 0's is stored in checkpoint.json."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, on every rank."""

    def tensors(self, training: Training) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint by name: the same names on every rank, zeros before the first step.

        A resume loads them in place, unless the checkpoint has none of this callback. A tensor with the shape of a
        parameter must have the parameter's layout (`zeros_like`); all others must be equal on all ranks.
        """
        return {}


class Best(Callback):
    """The best value of an evaluation metric so far; base class of `EarlyStopping` and `BestCheckpoint`.

    Args:
        metric: name of the metric, such as `validation_loss` or `validation_accuracy`.
        least: smallest change that counts as an improvement, in the unit of the metric.
        goal: whether a lower or a higher value is better.
    """

    def __init__(self, metric: str = "validation_loss", least: float = 0.0, goal: Goal = "minimize") -> None:
        self.name = type(self).__name__
        _errors.refuse({"goal": goal not in ("minimize", "maximize")}, name=self.name, goal=goal)
        self.metric, self.least, self.sign = metric, least, 1 if goal == "minimize" else -1
        self.best = math.inf

    def improved(self, figures: Mapping[str, float]) -> bool:
        """Return whether the metric, reduced over all ranks, improved; DtkError if the evaluation lacks it."""
        _errors.refuse({"metric": self.metric not in figures}, name=self.name, metric=self.metric, figures=[*figures])
        value = self.sign * figures[self.metric]
        if better := value < self.best - self.least:
            self.best = value
        return better

    def state(self) -> dict[str, Any]:
        """Return the best value."""
        return {"best": None if math.isinf(self.best) else self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the best value."""
        self.best = math.inf if state["best"] is None else float(state["best"])


class EarlyStopping(Best):
    """Ends a run after `patience` evaluations in which a metric did not improve; other arguments as for `Best`."""

    def __init__(
        self, metric: str = "validation_loss", patience: int = 3, least: float = 0.0, goal: Goal = "minimize"
    ) -> None:
        _errors.refuse({"patience": patience < 1}, patience=patience)
        super().__init__(metric, least, goal)
        self.patience, self.waited = patience, 0

    def after_evaluation(self, training: Training, step: int, figures: Mapping[str, float]) -> None:
        """Count evaluations without an improvement, and request a stop after `patience` of them."""
        self.waited = 0 if self.improved(figures) else self.waited + 1
        if self.waited >= self.patience:
            best = self.sign * self.best
            training.stop(f"{self.metric} has not improved on {best:.4f} in {self.patience} evaluations")

    def state(self) -> dict[str, Any]:
        """Return the best value and the number of evaluations since."""
        return {**super().state(), "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and the number of evaluations since."""
        super().restore(state)
        self.waited = int(state["waited"])


@dataclass(slots=True)
class Callbacks:
    """The callbacks of a run, in the order of the configuration."""

    training: Training
    members: list[tuple[str, Callback, bool]] = field(default_factory=list)
    """Import path, object, and whether the run continues when it raises."""

    def each(self, call: Callable[[Callback, Training], None]) -> None:
        """Call a method of every callback; raise what one raises unless its configuration lets the run continue."""
        for target, callback, keep_going in self.members:
            try:
                with region("callback"):
                    call(callback, self.training)
            except Exception as error:
                if not keep_going:
                    raise
                report(f"callback {target}", error)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Call `on_failure` of every callback when the block raises; exceptions in `on_failure` are only reported."""
        try:
            yield
        except BaseException as error:
            for target, callback, _ in self.members:
                try:
                    callback.on_failure(self.training, error)
                except Exception as problem:
                    report(f"callback {target}", problem)
            raise

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for a checkpoint, each prefixed by the index of its callback in the configuration."""
        return {
            f"callback_{number}.{name}": value
            for number, (_, callback, _) in enumerate(self.members)
            for name, value in callback.tensors(self.training).items()
        }

    def state(self) -> list[Any]:
        """Return the states for a checkpoint, in the order of the configuration."""
        return [[target, callback.state()] for target, callback, _ in self.members]

    def restore(self, checkpoint: Path) -> None:
        """Restore the states from a checkpoint with the same callbacks; DtkError if a callback cannot use its state."""
        info = checkpoint / CHECKPOINT_INFO
        if not self.members or not info.is_file():  # A rehearsed run resumes from a checkpoint that does not exist.
            return
        states = json.loads(info.read_text(encoding="utf-8")).get("callbacks", [])
        if [target for target, _ in states] != [target for target, *_ in self.members]:
            return
        for (target, callback, _), (_, state) in zip(self.members, states, strict=True):
            try:
                callback.restore(state)
            except (LookupError, TypeError, ValueError) as error:
                why = f"{type(error).__name__}: {error}"
                raise _errors("state", target=target, checkpoint=checkpoint, why=why) from error


def build_callbacks(training: Training) -> Callbacks:
    """Build this rank's callbacks; DtkError if a `_target_` is not allowed, not found, or no such Callback."""
    members: list[tuple[str, Callback, bool]] = []
    for each in training.config.callbacks:
        callback = instantiate(each._target_, each.arguments, training.config.allow_targets, Callback)
        members.append((each._target_, callback, each.keep_going))
    return Callbacks(training, members)
