"""Monitors the numerics of training: the first non-finite loss or gradient, and diverging replicas. Two numbers on the
device hold the step, so that steps that do not log never synchronize with the device.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from diagnostics.analysis.vote import OF_JOB, count_votes
from diagnostics.contract.formatting import ranks_spoken
from diagnostics.evidence.metrics import word
from dtk.config.schema import RecordConfig
from dtk.parallel.context import Context
from dtk.parallel.control import list_over_ranks, sum_over_ranks
from dtk.parallel.placement import is_replicated_over
from dtk.parallel.regions import region
from dtk.record.guard import guarded, report
from dtk.record.parity import bits_of
from dtk.record.recorder import Recorder
from dtk.sharding.base import local

_CPU_BLOCK, _DEVICE_BLOCK = 2**20, 2**28  # Chosen: elements summed at once: the CPU makes an int64 copy of them.
INPUTS = "inputs"  # Name of the samples of a step among the compared parameters.
_UNKNOWN = 0  # Fingerprint of a rank that cannot be compared: its parameters are not finite or could not be read.
Ranks = tuple[int, ...]
Groups = Mapping[str, Sequence[Sequence[int]]]  # Dimension -> replicated ranks.


class Numerics:
    """Numerics monitor of one rank. Every method is a no-op at level off."""

    def __init__(self, config: RecordConfig, recorder: Recorder, context: Context, replicas: Groups) -> None:
        self._on = config.level != "off"
        self._every = config.replica_hash_every
        self._recorder = recorder
        self._context = context
        several = {name: groups for name, groups in replicas.items() if len(groups[0]) > 1}
        self._replicas = {name: [tuple(group) for group in groups] for name, groups in several.items()}
        """Dimension -> its groups: the ranks of a group hold replicas of what is not sharded over it."""
        self._first = torch.zeros(2, dtype=torch.int64, device=context.device)
        """Step of the first non-finite loss and of the first non-finite gradient norm; 0 = none so far."""
        self._values = torch.zeros(2, device=context.device)  # The values of the first non-finite figures.
        self._reported = [False, False]

    def gradient(self, step: int, norm: Tensor, model: nn.Module, wait: bool) -> None:
        """Check the global gradient norm, before the gradients are freed.

        `norm` is a scalar on the device. `wait` synchronizes with the device; on the CPU always.
        """
        if not self._on or self._reported[1]:
            return
        self._note(1, step, norm)
        if not (wait or norm.device.type == "cpu") or not (first := int(self._first[1])):
            return
        self._reported[1] = True
        # One pass over the gradients; only those of the very step show where it began.
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None and first == step}
        bad = [name for name, gradient in gradients.items() if not bool(local(gradient).isfinite().all())]
        about = {"figure": "grad_norm", "value": word(float(self._values[1])), "parameter": bad[0] if bad else None}
        counts = {"parameters_affected": len(bad), "parameters_seen": len(gradients)}
        self._recorder.event("non_finite", step=first, **about, **counts)

    def after_step(
        self, step: int, loss: Tensor, model: nn.Module, wait: bool, last: bool, inputs: Sequence[Tensor] = ()
    ) -> None:
        """Check this rank's loss, and compare replicas when due.

        `loss` is summed over this rank's part of the batch, a scalar on the device; `inputs` are those of the step's
        micro-batches on the CPU, equal on all ranks of a tp group. After the `last` step replicas are compared again.
        """
        if not self._on:
            return
        if not self._reported[0]:
            self._note(0, step, loss)
            if (wait or loss.device.type == "cpu") and (first := int(self._first[0])):
                self._reported[0] = True
                self._recorder.event("non_finite", step=first, figure="loss", value=word(float(self._values[0])))
        if self._replicas and self._every and (step % self._every == 0 or last):
            with region("replicas"):
                self._compare(step, model, inputs)

    def _note(self, which: int, step: int, figure: Tensor) -> None:
        first, value = self._first[which], self._values[which]
        new = first.eq(0).logical_and_(figure.isfinite().logical_not_())
        first.masked_fill_(new, step)
        value.copy_(torch.where(new, figure, value))

    def _compare(self, step: int, model: nn.Module, inputs: Sequence[Tensor]) -> None:
        """Compare fingerprints over each dimension; at the first difference find the parameter, and stop comparing."""
        names = [name for name, _ in model.named_parameters()]
        sums, mine = torch.zeros(0, dtype=torch.int64), dict.fromkeys(self._replicas, _UNKNOWN)
        alike: dict[str, list[int]] = {}
        with guarded("replicas"):
            parameters = list(model.parameters())
            for dimension in self._replicas:
                alike[dimension] = [i for i, p in enumerate(parameters) if is_replicated_over(p, dimension)]
            if "tp" in alike:  # Last, but reported first: they may be the reason that parameters diverge.
                alike["tp"] = [*range(len(names), len(names) + len(inputs)), *alike["tp"]]
            # By position, as the same tokens in a different order are different samples.
            tokens = torch.tensor([combined(each.reshape(-1).long()) for each in inputs], dtype=torch.int64)
            sums = torch.cat((fingerprints([local(parameter.detach()) for parameter in parameters]), tokens))
            names += [INPUTS] * len(inputs)
            if not bool((self._first > 0).any()):
                mine = {dimension: combined(sums[indices]) for dimension, indices in alike.items()}
        hashes = {dimension: list_over_ranks(self._context, value) for dimension, value in mine.items()}
        if any(_UNKNOWN in values for values in hashes.values()):
            return
        equal = True
        for dimension, groups in self._replicas.items():
            values = hashes[dimension]
            differing = [group for group in groups if len({values[rank] for rank in group}) > 1]
            if differing:
                equal = False
                compared = [names[i] for i in alike[dimension]]
                self._tell_divergence(step, dimension, compared, sums[alike[dimension]], values, differing)
        if not equal:
            self._replicas = {}
        elif self._context.rank == 0:
            self._recorder.event("replicas_equal", step=step, groups=sum(map(len, self._replicas.values())))

    def _tell_divergence(
        self, step: int, dimension: str, names: list[str], sums: Tensor, hashes: list[int], apart: Sequence[Ranks]
    ) -> None:
        rank = self._context.rank
        verdicts = [count_votes(OF_JOB, 0, {rank: hashes[rank] for rank in group}) for group in apart]
        longest = max(list_over_ranks(self._context, len(sums)))  # Pipeline stages have different parameters.
        rows = torch.zeros(len(apart), longest, dtype=torch.int64)
        for row, verdict in zip(rows, verdicts):
            if rank == verdict.sides[0][0]:
                row[: len(sums)].copy_(sums)
        sum_over_ranks(self._context, rows)
        for row, group, verdict in zip(rows, apart, verdicts):
            if rank in group:
                different = [names[i] for i in row[: len(sums)].ne(sums).nonzero().flatten().tolist()]
                about = {"dimension": dimension, "ranks": verdict.minority, "tie": verdict.tie, "group": list(group)}
                where = {"parameter": different[0] if different else None, "parameters_affected": len(different)}
                counts = {"reference": verdict.sides[0][0], "parameters_seen": len(names) - names.count(INPUTS)}
                self._recorder.event("replica_divergence", step=step, **about, **where, **counts)
        if rank == 0:
            wrong = sorted(other for verdict in verdicts for other in verdict.minority)
            what = f"the parameters of {ranks_spoken(wrong)} differ from their replicas' after step {step}"
            report("replicas", what)
            self._recorder.alert("replicas differ", f"{self._recorder.paths.root.name}: {what}")


def fingerprints(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of each tensor's bits, read as integers, modulo 2^64, as an int64 tensor on the CPU."""
    return torch.stack([_bit_sum(tensor) for tensor in tensors]).cpu()


def _bit_sum(tensor: Tensor) -> Tensor:
    if tensor.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    size = _CPU_BLOCK if tensor.device.type == "cpu" else _DEVICE_BLOCK
    return torch.stack([block.sum() for block in torch.split(bits_of(tensor), size)]).sum()


def combined(sums: Tensor) -> int:
    """Combine the sums of all parameters into one nonzero number that also depends on their order."""
    factors = torch.arange(len(sums), dtype=torch.int64).mul_(2).add_(1)
    return int(sums.mul(factors).sum()) or 1
