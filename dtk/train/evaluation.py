"""Exact metrics on the held-out split for any world size: samples by their position in a seeded permutation. A rank
that runs out of samples continues with batches that are not counted, so that all ranks issue the same collectives.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from dtk.config.schema import Config
from dtk.data.dataset import IGNORE, Batch, Dataset
from dtk.data.sampler import evaluation_ids
from dtk.errors import DtkError
from dtk.parallel.batch_plan import evaluation_positions, evaluation_rounds
from dtk.parallel.context import Context
from dtk.parallel.control import share_buffers, sum_over_ranks
from dtk.parallel.regions import region
from dtk.train.setup import Parts


def evaluate(config: Config, context: Context, dataset: Dataset, parts: Parts) -> dict[str, float]:
    """Return the loss and metrics over the held-out samples; DtkError if a custom metric returns more than one number.

    Return validation_loss: mean over valid targets; validation_<name>: each metric of the task; validation_samples:
    samples evaluated over all ranks; validation_classes, if the data has classes: number of classes among them.
    """
    size = min(dataset.validation_size, config.train.evaluate_samples or dataset.validation_size)
    micro = config.train.micro_batch_size
    positions = evaluation_positions(size, context.dp_rank, context.dp_size)
    own_ids = evaluation_ids(config.seed, size, dataset.validation_size)[positions]
    rounds = evaluation_rounds(size, micro, context.dp_size)
    of_class = torch.zeros(dataset.classes or 0, dtype=torch.float64)

    def batches() -> Iterator[Batch]:
        for i in range(rounds):
            ids = own_ids[i * micro : (i + 1) * micro]
            if not len(ids):  # A rank that has run out of samples continues with one that is not counted.
                yield replace(dataset.validation(np.zeros(1, dtype=np.int64)), counts=False)
                continue
            batch = dataset.validation(ids)
            if dataset.classes:
                of_class.add_(torch.bincount(batch.targets[batch.targets != IGNORE], minlength=dataset.classes))
            yield batch

    share_buffers(context, parts.model)
    parts.model.eval()
    with region("evaluation"), torch.no_grad():
        collected = {name: metric.to(context.device) for name, metric in parts.task.collected().items()}
        sums = parts.runner.evaluate(batches(), collected)
    parts.model.train()
    sums = sum_over_ranks(context, torch.cat([sums.cpu() * context.leads_tokens, of_class * context.leads]))
    names = ["loss", *parts.task.metric_names]
    totals = zip(names, sums[: 2 * len(names)].reshape(-1, 2).tolist(), strict=True)
    shown = ((name, total, count) for name, (total, count) in totals if count or name == "loss")
    figures = {f"validation_{name}": total / max(count, 1.0) for name, total, count in shown}
    for name, metric in collected.items():
        value = metric.compute()
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            what = f"{type(parts.task).__qualname__}.collected: {name} is not a single number"
            raise DtkError(what, fix='average it, as average="macro" of torchmetrics does')
        figures[f"validation_{name}"] = float(value)
    figures["validation_samples"] = float(size)
    if dataset.classes:
        figures["validation_classes"] = float((sums[2 * len(names) :] > 0).sum())
    return figures
