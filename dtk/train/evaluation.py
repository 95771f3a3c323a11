"""Exact metrics on the held-out split, whatever the number of ranks.

Samples are dealt out by index; a rank that runs out goes on with batches whose targets are all
invalid, so that every rank issues the same collectives and nothing is counted twice.
"""

import numpy as np
import torch

from dtk.config.schema import Config
from dtk.data.dataset import IGNORE, Batch, Dataset
from dtk.parallel.batch_plan import evaluation_positions, evaluation_rounds
from dtk.parallel.context import Context
from dtk.parallel.control import sum_over_ranks
from dtk.parallel.regions import region
from dtk.train.loss import correct_predictions, loss_sum, to_device
from dtk.train.setup import Parts


def evaluate(config: Config, context: Context, dataset: Dataset, parts: Parts) -> dict[str, float]:
    """Loss (and accuracy for classification) over the held-out samples.

    Returns:
        validation_loss: mean over valid targets; validation_accuracy: share of right predictions;
        validation_samples: samples evaluated over all ranks.
    """
    size = min(dataset.validation_size, config.train.evaluate_samples or dataset.validation_size)
    micro = config.train.micro_batch_size
    mine = np.array(evaluation_positions(size, context.dp_rank, context.dp_size), dtype=np.int64)
    rounds = evaluation_rounds(size, micro, context.dp_size)
    sums = torch.zeros(3, dtype=torch.float64, device=context.device)
    parts.model.eval()
    with region("evaluation"), torch.no_grad():
        for i in range(rounds):
            batch = to_device(_batch(dataset, mine[i * micro : (i + 1) * micro]), context.device)
            with parts.strategy.autocast():
                logits = parts.model(batch.inputs)
            sums[0] += loss_sum(logits, batch.targets)
            sums[1] += (batch.targets != IGNORE).sum()
            sums[2] += correct_predictions(logits, batch.targets)
        parts.strategy.release(parts.model)
    parts.model.train()
    loss, targets, correct = sum_over_ranks(context, sums.cpu() * context.leads).tolist()
    return {
        "validation_loss": loss / max(targets, 1.0),
        "validation_accuracy": correct / max(targets, 1.0),
        "validation_samples": float(size),
    }


def _batch(dataset: Dataset, ids: np.ndarray) -> Batch:
    """Return the samples or, if there are none, one sample that does not count."""
    if len(ids):
        return dataset.validation(ids)
    filler = dataset.validation(np.zeros(1, dtype=np.int64))
    return Batch(filler.inputs, torch.full_like(filler.targets, IGNORE))
