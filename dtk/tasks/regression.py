"""Regression with squared error."""

from typing import Any

import torch
from torch import Tensor

from dtk.errors import DtkError
from dtk.tasks.base import Sums, Task
from dtk.tasks.cross_entropy import logits_of


class Regression(Task):
    """Half the squared error of each target; NaN marks a missing target, which is not counted."""

    metric_names = ("mean_absolute_error",)

    def loss_sum(self, output: Any, targets: Tensor) -> Tensor:
        """Return half the summed squared error; DtkError if the output's shape does not match the float targets.

        The output, or what `logits_of` extracts from it, may have a trailing dimension of 1.
        """
        return 0.5 * _errors(output, targets).square().sum()

    def count(self, targets: Tensor) -> int:
        """Return the number of targets that are not NaN."""
        return int((~targets.isnan()).sum())

    def metrics(self, output: Any, targets: Tensor) -> Sums:
        """Return the mean absolute error."""
        return {"mean_absolute_error": (_errors(output, targets).abs().sum(), (~targets.isnan()).sum())}


def _errors(output: Any, targets: Tensor) -> Tensor:
    """Return output - targets in float32, 0 where a target is missing."""
    values = logits_of(output)
    if values.shape == (*targets.shape, 1):
        values = values.squeeze(-1)
    if values.shape != targets.shape:
        what = f"the model's output is {list(values.shape)}, the targets {list(targets.shape)}"
        why = "a regression has a number for each target"
        raise DtkError(what, why, "change what the model's forward returns, or the dataset's targets")
    missing = targets.isnan()
    return torch.where(missing, 0.0, values.float() - targets.nan_to_num().float())
