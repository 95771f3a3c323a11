"""What a task of one's own returns is checked where it is added up."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dtk.data.dataset import Batch
from dtk.errors import DtkError
from dtk.tasks.base import Task, add_figures, leaves, loss_of, no_figures

CPU = torch.device("cpu")


class Own(Task):
    metric_names = ("hits",)

    def __init__(self, loss: object = None, metrics: dict | None = None) -> None:
        self.loss, self.given = loss, {"hits": (3, 4)} if metrics is None else metrics

    def loss_sum(self, output: Tensor, targets: Tensor) -> Tensor:
        return self.loss if self.loss is not None else output.sum()

    def metrics(self, output: Tensor, targets: Tensor) -> dict:
        return self.given


def test_figures_add_up_over_micro_batches() -> None:
    sums = no_figures(Own(), CPU)
    for _ in range(2):
        add_figures(sums, Own(), torch.ones(5), Batch(None, torch.zeros(5)), 5)
    add_figures(sums, Own(), torch.ones(5), Batch(None, torch.zeros(5), counts=False), 5)
    assert sums.tolist() == [10, 10, 6, 8]


@pytest.mark.parametrize("loss", [torch.ones(2), 1.0, None.__class__])
def test_a_loss_that_is_no_scalar_is_one_line(loss: object) -> None:
    with pytest.raises(DtkError, match=r"Own\.loss_sum returned .*scalar"):
        loss_of(Own(loss), torch.ones(2), torch.ones(2))


def test_metrics_other_than_those_named_are_refused() -> None:
    with pytest.raises(DtkError, match=r"returned \['misses'\], but metric_names is \['hits'\]"):
        add_figures(
            no_figures(Own(), CPU), Own(metrics={"misses": (1, 1)}), torch.ones(1), Batch(None, torch.ones(1)), 1
        )


@pytest.mark.parametrize("pair", [None, 3, (1,), (torch.ones(2), 2), ("a", 1), (1, None), (1, 2, 3)])
def test_a_metric_that_is_no_pair_of_numbers_is_one_line(pair: object) -> None:
    task, batch = Own(metrics={"hits": pair}), Batch(None, torch.ones(1))
    with pytest.raises(DtkError, match=r"Own\.metrics: hits is not a pair of numbers: .*return \(sum, count\)"):
        add_figures(no_figures(task, CPU), task, torch.ones(1), batch, 1)


def test_numbers_of_any_kind_and_tensors_of_one_element_are_taken() -> None:
    task = Own(metrics={"hits": (torch.ones(1, 1), np.int64(4))})
    sums = no_figures(task, CPU)
    add_figures(sums, task, torch.ones(1), Batch(None, torch.ones(1)), 1)
    assert sums.tolist() == [1, 1, 1, 4]


def test_samples_count_by_default_whatever_the_tree() -> None:
    assert Own().count({"boxes": torch.zeros(3, 4), "classes": torch.zeros(3)}) == 3
    with pytest.raises(DtkError, match="without tensors"):
        leaves({"names": ["a"]})


def test_a_mapping_calls_the_model_by_keyword() -> None:
    class Add(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    assert Own().forward(Add(), {"b": torch.ones(1), "a": torch.ones(1)}).item() == 2
    assert Own().forward(nn.Identity(), torch.ones(1)).item() == 1
