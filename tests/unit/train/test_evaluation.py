"""Every held-out sample counts once, whatever the ranks and the micro-batch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import PrecisionConfig
from dtk.data.dataset import Batch, Dataset, to_batch
from dtk.strategies.ddp import DDP, DDPConfig
from dtk.tasks.cross_entropy import Classification
from dtk.train.evaluation import evaluate
from dtk.train.runner import Accumulate, Stage
from dtk.train.setup import Parts
from tests.unit.rank_threads import context, on_ranks
from tests.unit.train.conftest import config

CLASSES = 5


class Labelled(Dataset):
    """Sample i has class i modulo 5, and says so to a model that is wrong about class 4."""

    train_size = vocab_size = fixed_targets = 1
    classes = CLASSES

    def __init__(self, size: int) -> None:
        self.validation_size = size

    def validation(self, ids: np.ndarray) -> Batch:
        return to_batch((ids % CLASSES)[:, None], ids % CLASSES)

    train = validation


class Sure(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(x[:, 0].clamp(max=3), CLASSES).float()


def figures(ranks: int, size: int, micro: int, most: int = 0) -> dict[str, float]:
    settings = config(
        strategy=DDPConfig(), train=replace(config().train, micro_batch_size=micro, evaluate_samples=most or None)
    )

    def work(rank: int) -> dict[str, float]:
        place = context(rank, Mesh(dp_replicate=ranks))
        strategy, model, task = DDP(DDPConfig(), place, PrecisionConfig()), Sure(), Classification()
        unused: Any = None
        parts = Parts(
            model, model, strategy, unused, 0, Accumulate(strategy, Stage(model, model, lambda steps: []), task), task
        )
        measured = evaluate(settings, place, Labelled(size), parts)
        assert model.training
        return measured

    results = on_ranks(ranks, work)
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.parametrize(("ranks", "micro"), [(1, 1), (1, 7), (2, 3), (3, 4), (4, 5)])
@pytest.mark.parametrize("size", [1, 13, 20])
def test_figures_do_not_depend_on_the_division(ranks: int, micro: int, size: int) -> None:
    result, expected = figures(ranks, size, micro), figures(1, size, size)
    assert result == pytest.approx(expected) and result["validation_samples"] == size
    wrong = sum(i % CLASSES == 4 for i in range(size))
    assert result["validation_accuracy"] == pytest.approx(1 - wrong / size)
    assert result["validation_classes"] == min(size, CLASSES)


def test_a_part_of_the_split_is_the_same_for_every_division() -> None:
    assert figures(3, 40, 2, most=7) == pytest.approx(figures(1, 40, 7, most=7))
    assert figures(1, 40, 7, most=7)["validation_samples"] == 7
