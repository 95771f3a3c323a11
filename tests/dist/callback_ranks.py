"""Callbacks for the tests, and runs with them on every rank."""

import json
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from diagnostics.contract.artifacts import RunPaths, complete_checkpoints
from diagnostics.contract.files import read_json
from dtk.parallel.context import Context
from dtk.parallel.stop import StopRequest
from dtk.record.recorder import Recorder
from dtk.train.assemble import assemble
from dtk.train.builtin import EMA, BestCheckpoint
from dtk.train.callbacks import Callback, EarlyStopping, Training
from dtk.train.loop import Loop
from tests.dist.ranks import placed
from tests.dist.training_ranks import config

CALLS: list[tuple[Any, ...]] = []


class Notes(Callback):
    """Keeps what it is told."""

    def before_step(self, training: Training, step: int) -> None:
        CALLS.append(("before", step))

    def after_step(self, training: Training, step: int, record: Any) -> None:
        CALLS.append(("after", step, record and record["step"]))

    def after_evaluation(self, training: Training, step: int, figures: Any) -> None:
        CALLS.append(("evaluation", step, figures["validation_loss"]))

    def after_checkpoint(self, training: Training, step: int) -> None:
        CALLS.append(("checkpoint", step))

    def on_failure(self, training: Training, error: BaseException) -> None:
        CALLS.append(("failure", str(error)))


class Averages(Callback):
    """The mean of all weights since the start, of which each rank keeps that of its own shards."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.averages: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def after_step(self, training: Training, step: int, record: Any) -> None:
        for name, value in training.model.named_parameters():
            self.averages.setdefault(name, value.detach().clone()).lerp_(value, 1 - self.decay)


class StopsOnOneRank(Callback):
    """Only the last rank has had enough, in step 3."""

    def after_step(self, training: Training, step: int, record: Any) -> None:
        if step == 3 and training.context.rank == training.context.world_size - 1:
            training.stop("enough seen")


class Raises(Callback):
    def before_step(self, training: Training, step: int) -> None:
        if step == 2:
            raise ValueError("bad callback")


class Never(EarlyStopping):
    """Sees figures that get worse."""

    def after_evaluation(self, training: Training, step: int, figures: Any) -> None:
        super().after_evaluation(training, step, {"validation_loss": float(step)})


class Figures(BestCheckpoint):
    """The second evaluation is the best, and the last three are the worst."""

    def after_evaluation(self, training: Training, step: int, figures: Any) -> None:
        super().after_evaluation(training, step, {"validation_loss": {4: 1.0}.get(step, float(step))})


class Weights(Callback):
    """Keeps the whole weights after every step, for the averages to be computed again from them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def after_step(self, training: Training, step: int, record: Any) -> None:
        self.steps.append(whole(dict(training.model.named_parameters())))


def whole(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every rank must call it."""
    values = {name: value.detach() for name, value in tensors.items()}
    return {name: (v.full_tensor() if isinstance(v, DTensor) else v).clone() for name, v in values.items()}


def extra(loop: Loop, paths: RunPaths) -> dict[str, Any]:
    """What the built-in callbacks left."""
    result: dict[str, Any] = {"checkpoints": [path.name for path in complete_checkpoints(paths)]}
    if (paths.checkpoints / "best.json").is_file():
        result["best"] = read_json(paths.checkpoints / "best.json")
    if paths.metrics.is_file():
        result["metrics"] = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    for _, callback, _ in loop.callbacks.members:
        if isinstance(callback, EMA):
            result["sums"], result["steps"] = whole(callback.sums), float(callback.steps)
            result["model"] = whole(dict(loop.parts.model.named_parameters()))
        if isinstance(callback, Weights):
            result["weights"] = callback.steps
    return result


def run_all(context: Context, cases: dict[str, dict[str, Any]], folder: str) -> dict[str, dict[str, Any]]:
    """`cases`: name -> changes, with `load` the name of the case to continue with; returns what came of each."""
    results = {}
    for name, given in cases.items():
        changes = {key: value for key, value in given.items() if key != "load"}
        configuration = config(allow_targets=["tests.dist.callback_ranks.*"], **changes)
        rank, paths = placed(context, configuration.strategy), RunPaths(Path(folder) / name)
        recorder = Recorder(configuration, paths, context.rank, 0, 0, context.world_size, 0, context.device)
        load = complete_checkpoints(RunPaths(Path(folder) / given["load"]))[-1] if "load" in given else None
        CALLS.clear()
        error, finished = "", False
        loop = assemble(configuration, rank, paths, recorder, StopRequest(), load)
        if configuration.record.level != "off":
            recorder._writer.start()
        try:
            finished = loop.run()
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        recorder._writer.close(5)
        callback = loop.callbacks.members[0][1]
        averages = getattr(callback, "averages", getattr(callback, "sums", {}))
        results[name] = {
            "calls": list(CALLS),
            "finished": finished,
            "step": loop.state.step,
            "enough": loop.enough,
            "reason": loop.callbacks.training.reason,
            "error": error,
            "extra": extra(loop, paths),
            "elements": sum(getattr(value, "_local_tensor", value).numel() for value in averages.values()),
        }
    return results
