"""The base class of tasks, built-in and custom: how a model is called with a batch, its loss and its metrics."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree

from dtk.data.dataset import Batch
from dtk.errors import Errors

_errors = Errors(__file__)

Sums = Mapping[str, tuple[Tensor | float, Tensor | float]]


class Task(ABC):
    """Base class of tasks; name a derived class in `task._target_`. Every method runs on one rank, for one micro-batch.

    dtk sums what the methods return over micro-batches and ranks, and divides once at the end. Losses and metrics are
    therefore exact, and equal for every strategy, number of ranks and micro-batch size. No method may communicate.
    """

    metric_names: ClassVar[tuple[str, ...]] = ()
    """Names of what `metrics` returns, in this order; recorded as `validation_<name>`."""

    def forward(self, model: Callable[..., Any], inputs: Any) -> Any:
        """Call the model, with keyword arguments if the inputs are a mapping.

        `model` is as the strategy wrapped it, `inputs` the first part of a batch: any tree of tensors,
        [micro_batch_size, ...] each, on the rank's device.
        """
        return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)

    @abstractmethod
    def loss_sum(self, output: Any, targets: Any) -> Tensor:
        """Return the loss summed over all valid targets, a float32 scalar.

        `output` is what `forward` returned, `targets` the second part of a batch: any tree of tensors,
        [micro_batch_size, ...] each, on the rank's device.
        """

    def count(self, targets: Any) -> int:
        """Return the number of valid targets (still on the CPU) to divide summed losses by; by default of samples."""
        return len(leaves(targets)[0])

    def collected(self) -> dict[str, Any]:
        """Return the metrics that are not a quotient of sums, by name: objects with the interface of torchmetrics.

        Called at each evaluation; then dtk calls `update(*collect(...))` for each micro-batch and `compute()`, which
        gathers the state over ranks and must return one number. Recorded as `validation_<name>`.
        """
        return {}

    def collect(self, output: Any, targets: Any) -> tuple[Any, ...]:
        """Return the arguments of `update` for the metrics of `collected`."""
        return output, targets

    def metrics(self, output: Any, targets: Any) -> Sums:
        """Return name -> (sum, count) for every name of `metric_names`, from a model's output without gradients.

        The metric is their quotient; where the counts add up to 0 it is undefined, and not reported.
        """
        return {}


def leaves(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree; DtkError if the tree has no tensor."""
    tensors = [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
    _errors.refuse({"no_tensor": not tensors}, kind=type(tree).__qualname__)
    return tensors


def loss_of(task: Task, output: Any, targets: Any) -> Tensor:
    """Return the summed loss of a micro-batch; DtkError if the loss is not a scalar tensor."""
    loss = task.loss_sum(output, targets)
    if not isinstance(loss, Tensor) or loss.dim():
        what = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__qualname__}"
        raise _errors("loss", task=type(task).__qualname__, what=what)
    return loss


def add_figures(
    sums: Tensor, task: Task, output: Any, batch: Batch, count: int, collected: Mapping[str, Any] | None = None
) -> None:
    """Add the loss and metrics of a micro-batch to `sums`; DtkError if the metrics are not those in `metric_names`.

    Args:
        sums: [summed loss, targets, and the sum and the count of each metric], float64 on the rank's device.
        task: computes them.
        output: output of the model.
        batch: batch on the rank's device. It is evaluated even if it is not counted: with logits sharded over ranks the
            loss issues collectives.
        count: number of valid targets; 0 = the batch is not counted.
        collected: metrics that keep their own state.
    """
    metrics, names = task.metrics(output, batch.targets), task.metric_names
    about = {"task": type(task).__qualname__, "returned": str(list(metrics)), "names": str(list(names))}
    _errors.refuse({"names": tuple(metrics) != names}, **about)
    pairs = ((loss_of(task, output, batch.targets), count), *metrics.values())
    for name, pair in metrics.items():
        given = pair if isinstance(pair, tuple | list) else ()
        if [v.numel() == 1 if isinstance(v, Tensor) else isinstance(v, Real) for v in given] != [True, True]:
            raise _errors("pair", **about, name=name)
    if batch.counts:
        numbers = (value for pair in pairs for value in pair)
        values = [torch.as_tensor(value, dtype=sums.dtype, device=sums.device).reshape(()) for value in numbers]
        sums += torch.stack(values)
        for metric in (collected or {}).values():
            metric.update(*task.collect(output, batch.targets))


def no_figures(task: Task, device: torch.device) -> Tensor:
    """Return zeros for `add_figures`."""
    return torch.zeros(2 + 2 * len(task.metric_names), dtype=torch.float64, device=device)
