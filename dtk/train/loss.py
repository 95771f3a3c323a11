"""The loss: a sum over valid targets, normalised later by their number in the global batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dtk.data.dataset import IGNORE, Batch


def loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the summed cross-entropy in float32, a scalar.

    Args:
        logits: [batch, sequence, vocab] or [batch, classes].
        targets: int64 [batch, sequence] or [batch]; IGNORE does not count.
    """
    flat = logits.reshape(-1, logits.shape[-1]).float()
    return F.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORE, reduction="sum")


def correct_predictions(logits: Tensor, targets: Tensor) -> Tensor:
    """How many valid targets are the most likely class, a scalar int64."""
    valid = targets != IGNORE
    return ((logits.argmax(-1) == targets) & valid).sum()


def valid_targets(batches: list[Batch]) -> int:
    """Targets that count in these micro-batches."""
    return sum(int((batch.targets != IGNORE).sum()) for batch in batches)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy the batch to the rank's device; the copy overlaps with what runs there."""
    if device.type == "cpu":
        return batch
    return Batch(
        batch.inputs.pin_memory().to(device, non_blocking=True),
        batch.targets.pin_memory().to(device, non_blocking=True),
    )
