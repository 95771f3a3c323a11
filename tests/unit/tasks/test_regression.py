"""Missing targets count nowhere: neither in the loss, nor in its gradient, nor in the metric."""

import pytest
import torch

from dtk.errors import DtkError
from dtk.tasks.regression import Regression

NAN = float("nan")


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_missing_targets_do_not_count(shape: tuple[int, ...]) -> None:
    output = torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(shape).requires_grad_()
    targets = torch.tensor([1.0, NAN, 1.0, 3.0])
    task = Regression()
    loss = task.loss_sum(output, targets)
    loss.backward()
    assert loss.item() == 0.5 * (4 + 1)
    assert output.grad is not None and output.grad.flatten().tolist() == [0, 0, 2, 1]
    assert task.count(targets) == 3
    total, count = task.metrics(output.detach(), targets)["mean_absolute_error"]
    assert (float(total), int(count)) == (3.0, 3)


def test_another_shape_is_one_line() -> None:
    with pytest.raises(DtkError, match=r"output is \[4, 3\], the targets \[4\]"):
        Regression().loss_sum(torch.zeros(4, 3), torch.zeros(4))
