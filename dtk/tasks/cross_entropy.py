"""Tasks whose targets are classes: the next token, or the class of a text or an image. IGNORE is not counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dtk.data.dataset import IGNORE
from dtk.errors import Errors
from dtk.parallel.collectives import Axis, all_gather, cross_entropy_sum, join
from dtk.tasks.base import Sums, Task

_errors = Errors(__file__)


def logits_of(output: Any) -> Tensor:
    """Return the logits from the output of a model's forward; DtkError if it has no tensor of logits.

    It is the logits, an object (as of transformers) or mapping with `logits`, or a tuple whose first element they are.
    """
    logits = output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif hasattr(output, "logits"):
        logits = output.logits
    elif isinstance(output, tuple | list) and output:
        logits = output[0]
    if isinstance(logits, Tensor):
        return logits
    has_loss = hasattr(output, "loss") or (isinstance(output, Mapping) and "loss" in output)
    raise _errors("own_loss" if has_loss else "no_logits", kind=type(output).__qualname__)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How the vocabulary dimension of the logits is sharded over ranks."""

    axis: Axis
    parallel: bool
    """Whether the loss is computed on each rank's shard instead of gathered logits."""


def auxiliary_loss(output: Any) -> Tensor | None:
    """Return the loss that a model adds to the summed cross-entropy (`dtk.models.moe.Answer`), or None."""
    return getattr(output, "auxiliary", None)


@dataclass(frozen=True, slots=True)
class LanguageModeling(Task):
    """Next-token prediction: logits [batch, sequence, vocab], targets int64 [batch, sequence]."""

    metric_names: ClassVar[tuple[str, ...]] = ("accuracy",)
    vocabulary: Vocabulary | None = None
    """How the logits' last dimension is sharded; None if the rank has all of it."""

    def loss_sum(self, output: Any, targets: Tensor) -> Tensor:
        """Return the summed cross-entropy in float32, a scalar, of int64 targets, of which IGNORE does not count.

        DtkError if `logits_of` the output finds none, or they do not have the targets' dimensions and one more.
        """
        logits, vocabulary = logits_of(output), self.vocabulary
        if logits.shape[:-1] != targets.shape:
            raise _errors("shapes", logits=str(list(logits.shape)), targets=str(list(targets.shape)))
        if vocabulary is not None and not vocabulary.parallel:
            logits = join(logits, logits.dim() - 1, vocabulary.axis)
        flat = logits.reshape(-1, logits.shape[-1]).float()
        if vocabulary is not None and vocabulary.parallel:
            return cross_entropy_sum(flat, targets.reshape(-1), IGNORE, vocabulary.axis)
        return F.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORE, reduction="sum")

    def count(self, targets: Tensor) -> int:
        """Return the number of targets that are not IGNORE."""
        return int((targets != IGNORE).sum())

    def metrics(self, output: Any, targets: Tensor) -> Sums:
        """Return the accuracy: the share of targets that are the most likely class."""
        logits, valid = logits_of(output), targets != IGNORE
        largest, predicted = logits.max(-1)
        if self.vocabulary is not None:
            axis = self.vocabulary.axis
            predicted = predicted + axis.rank * logits.shape[-1]
            candidates = all_gather(torch.stack((largest.double(), predicted.double())).unsqueeze(0), 0, axis)
            best = candidates[:, 0].argmax(0, keepdim=True)
            predicted = candidates[:, 1].gather(0, best).squeeze(0).long()
        return {"accuracy": (((predicted == targets) & valid).sum(), valid.sum())}


class Classification(LanguageModeling):
    """Classification: one class per sample; logits [batch, classes], targets int64 [batch]."""


class ImageClassification(Classification):
    """Image classification, with top-5 accuracy where there are more than 5 classes."""

    metric_names = ("accuracy", "top5_accuracy")

    def metrics(self, output: Any, targets: Tensor) -> Sums:
        """Return accuracy and top-5 accuracy, which is undefined for 5 classes or fewer: it would always be 100%."""
        logits = logits_of(output)
        if logits.shape[-1] <= 5:
            return {**super().metrics(output, targets), "top5_accuracy": (0.0, 0.0)}
        best = logits.topk(5, dim=-1).indices
        among = (best == targets.unsqueeze(-1)).any(-1).sum()
        return {**super().metrics(output, targets), "top5_accuracy": (among, (targets != IGNORE).sum())}
