"""Callbacks that record training with transformers' Trainer and Lightning. Each imports its library when called."""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from dtk.parallel.regions import region
from dtk.record.own_loop import Recording, attach


class _Loop:
    """A recording that hooks control: at most one region is open, and the next one closes it."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.run: Recording | None = None
        self.open: AbstractContextManager[object] | None = None

    def begin(self, config: Mapping[str, Any], done: int) -> None:
        self.run = attach(**{"config": config, **self.arguments})
        self.run.step = done

    def enter(self, name: str | None, step: int | None = None) -> None:
        """Close the open region and open another (None = none), in a new step if one is given."""
        if self.open is not None:
            self.open.__exit__(None, None, None)
        if self.run is not None and step is not None and step > self.run.step:
            self.run.begin_step(step)
        self.open = None if name is None else region(name)
        if self.open is not None:
            self.open.__enter__()

    def log(self, figures: Mapping[str, Any]) -> None:
        if self.run is not None:
            self.run.log(**{name: value for name, value in figures.items() if name not in ("step", "epoch")})

    def end(self, error: BaseException | None = None) -> None:
        self.enter(None)
        if self.run is not None:
            self.run.close(error)
        self.run = None


def hf_trainer_callback(**arguments: Any) -> Any:
    """Return a callback for `transformers.Trainer(callbacks=[...])` that records its training.

    Takes the arguments of `dtk.record.attach`; `config` defaults to the training arguments.
    """
    from transformers import TrainerCallback

    loop = _Loop(arguments)
    hooks = {
        "on_train_begin": lambda _, args, state, *__, **___: loop.begin(args.to_sanitized_dict(), state.global_step),
        "on_step_begin": lambda _, args, state, *__, **___: loop.enter("forward_backward", state.global_step + 1),
        "on_pre_optimizer_step": lambda *_, **__: loop.enter("optimizer"),
        "on_step_end": lambda *_, **__: loop.enter(None),
        "on_log": lambda *_, logs, **__: loop.log(logs),
        "on_train_end": lambda *_, **__: loop.end(),
    }
    return type("Recorded", (TrainerCallback,), hooks)()


def lightning_callback(**arguments: Any) -> Any:
    """Return a callback for `lightning.Trainer(callbacks=[...])` that records its fit.

    Takes the arguments of `dtk.record.attach`; `config` defaults to the module's hyperparameters.
    """
    lightning = import_module("pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch")
    loop = _Loop(arguments)
    # Metric -> where its value first appeared; `callback_metrics` keeps it from there on.
    recorded_at: dict[str, str] = {}

    def log(trainer: Any, where: str, **figures: Any) -> None:
        metrics = trainer.callback_metrics.items()
        figures |= {name: value for name, value in metrics if recorded_at.setdefault(name, where) == where}
        if figures and not trainer.sanity_checking:
            loop.log(figures)

    def batch_ended(_: Any, trainer: Any, module: Any, outputs: Any, *__: Any) -> None:
        loop.enter(None)
        step = trainer.global_step  # Within an accumulation this is the count of the previous step.
        if loop.run is not None and loop.run.step == step and step % trainer.log_every_n_steps == 0:
            loss = {"loss": outputs["loss"]} if isinstance(outputs, Mapping) and "loss" in outputs else {}
            log(trainer, "batch", **loss)

    def validated(_: Any, trainer: Any, *__: Any) -> None:
        loop.enter(None)
        log(trainer, "validation")

    hooks = {
        "on_fit_start": lambda _, trainer, module: loop.begin(dict(module.hparams), trainer.global_step),
        "on_train_batch_start": lambda _, trainer, *__: loop.enter("forward", trainer.global_step + 1),
        "on_before_backward": lambda *_: loop.enter("backward"),
        "on_before_optimizer_step": lambda *_: loop.enter("optimizer"),
        "on_train_batch_end": batch_ended,
        "on_validation_start": lambda *_: loop.enter("evaluation"),
        "on_validation_end": validated,
        "on_train_epoch_end": lambda _, trainer, *__: log(trainer, "epoch"),
        "on_exception": lambda _, trainer, module, exception: loop.end(exception),
        "on_fit_end": lambda *_: loop.end(),
    }
    return type("Recorded", (lightning.Callback,), hooks)()
