"""On every rank: evaluations of untrained models, and of one that knows the answers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dtk.data.build import build_dataset
from dtk.data.dataset import Batch, Dataset
from dtk.parallel.context import Context
from dtk.strategies.single import Single
from dtk.tasks.cross_entropy import Classification
from dtk.train.evaluation import evaluate
from dtk.train.runner import Accumulate, Stage
from dtk.train.setup import Parts, set_up
from tests.dist.ranks import placed
from tests.dist.training_ranks import config


def evaluate_all(context: Context, cases: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, float]]:
    """`cases`: name -> changes of the configuration; returns name -> figures."""
    results = {}
    for name, changes in cases.items():
        configuration = config(**changes)
        rank = placed(context, configuration)
        parts = set_up(configuration, rank)
        results[name] = evaluate(
            configuration, rank, build_dataset(configuration.data, configuration.allow_targets), parts
        )
    return results


class Labelled(Dataset):
    """Samples whose tokens are their class."""

    def __init__(self, size: int) -> None:
        self.train_size = self.validation_size = size
        self.vocab_size = self.classes = 8
        self.fixed_targets = 1

    def validation(self, ids: np.ndarray) -> Batch:
        classes = torch.from_numpy(ids % self.vocab_size)
        return Batch(classes[:, None].repeat(1, 4), classes)

    train = validation


class Oracle(nn.Module):
    """Answers with the class that the first token says."""

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(tokens[:, 0], 8).float()


def evaluate_oracle(context: Context, size: int) -> dict[str, float]:
    configuration = config()
    model = Oracle()
    strategy = Single(configuration.strategy, context, configuration.precision)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    task = Classification()
    runner = Accumulate(strategy, Stage(model, model, lambda steps: []), task)
    return evaluate(configuration, context, Labelled(size), Parts(model, model, strategy, optimizer, 0, runner, task))
