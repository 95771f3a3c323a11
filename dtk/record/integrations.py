"""Callbacks that record the Trainer of transformers and the one of Lightning. Each imports its library when called."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from dtk.parallel.regions import region
from dtk.record.own_loop import Recording, attach


class _Loop:
    """A recording that hooks begin and end: at most one region is open, and the next one ends it."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.run: Recording | None = None
        self._open: AbstractContextManager[object] | None = None

    def begin(self, config: Mapping[str, Any], first: int) -> None:
        """Attach, before the step after `first`."""
        self.run = attach(**{"config": config, **self.arguments})
        self.run.step = first

    def enter(self, name: str | None) -> None:
        """End the open region and begin another; None = none."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = None if name is None else region(name)
        if self._open is not None:
            self._open.__enter__()

    def log(self, figures: Mapping[str, Any]) -> None:
        """Append the numbers among these to the metrics."""
        if self.run is not None:
            self.run.log(**{name: value for name, value in figures.items() if name not in ("step", "epoch")})

    def end(self, error: BaseException | None = None) -> None:
        """End the recording."""
        self.enter(None)
        if self.run is not None:
            self.run.close(error)
        self.run = None


def hf_trainer_callback(**arguments: Any) -> Any:
    """Return a callback for `transformers.Trainer(callbacks=[...])` that records its training.

    Args:
        arguments: of `dtk.record.attach`; `config` is the training arguments unless it is given.
    """
    from transformers import TrainerCallback

    loop = _Loop(arguments)

    class Recorded(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            loop.begin(args.to_sanitized_dict(), state.global_step)

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if loop.run is not None:
                loop.run.begin_step(state.global_step + 1)
            loop.enter("forward_backward")

        def on_pre_optimizer_step(self, *given: Any, **more: Any) -> None:
            loop.enter("optimizer")

        def on_step_end(self, *given: Any, **more: Any) -> None:
            loop.enter(None)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            loop.log({"grad_norm": None, **(logs or {})})

        def on_train_end(self, *given: Any, **more: Any) -> None:
            loop.end()

    return Recorded()


def lightning_callback(**arguments: Any) -> Any:
    """Return a callback for `lightning.Trainer(callbacks=[...])` that records its fit.

    Args:
        arguments: of `dtk.record.attach`; `config` is the module's hyperparameters unless it is given.
    """
    from lightning.pytorch import Callback

    loop = _Loop(arguments)

    class Recorded(Callback):  # type: ignore[misc]
        def on_fit_start(self, trainer: Any, module: Any) -> None:
            loop.begin(dict(module.hparams), trainer.global_step)

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
            if loop.run is not None and loop.run.step <= trainer.global_step:  # The first of an accumulation.
                loop.run.begin_step(trainer.global_step + 1)
            loop.enter("forward")

        def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
            loop.enter("backward")

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            loop.enter("optimizer")

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            loop.enter(None)
            done = trainer.global_step  # Within an accumulation it is that of the step before.
            if loop.run is not None and loop.run.step == done and done % trainer.log_every_n_steps == 0:
                loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
                loop.log({**({} if loss is None else {"loss": loss}), **trainer.callback_metrics})

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            loop.enter("evaluation")

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            loop.enter(None)

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            loop.end(exception)

        def on_fit_end(self, trainer: Any, module: Any) -> None:
            loop.end()

    return Recorded()
