"""Gradients are reduced in every micro-batch, although only the last one needs it."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.reductions import StepReductions, total_bytes
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import (
    Costly,
    NotIt,
    Undecided,
    cost_of,
    judged,
    no_backward,
    ruled_out,
    step_cause,
    undecided,
)
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.formatting import bytes_text

_REPEATED = 0.5
"""Share of the last micro-batch's reductions, in number and in bytes, that each earlier one has to repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedInEach(Costly):
    """Reductions before the last micro-batch."""

    micros: int
    sharded: bool
    micro_batch_size: int
    """As the run declares it, else 1."""

    def seen(self) -> str:
        """Return what was seen."""
        return f"gradients are reduced in each of {self.micros} micro-batches"

    def summary(self) -> str:
        """Return what is wrong."""
        return (
            f"Gradients are reduced in each of {self.micros} micro-batches; only the last one needs it. "
            f"That costs up to {self.cost}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        code = "run all micro-batches but the last inside `with model.no_sync():`"
        if self.sharded:
            code = "call `set_requires_gradient_sync(False)` on the FSDP model in all micro-batches but the last"
        change = f"train.micro_batch_size={self.micro_batch_size * self.micros}"
        return self.cost.override(change, "one micro-batch needs one reduction", code)


@dataclass(frozen=True, slots=True)
class MicroBatches(NotIt):
    """How many micro-batches there are, and that they do not repeat the reductions."""

    micros: int

    def measured(self) -> str:
        """Return the value that rules it out."""
        if self.micros < 2:
            return f"{self.micros} micro-batch a step"
        return f"gradients are reduced in 1 of {self.micros} micro-batches"


@dataclass(frozen=True, slots=True)
class Updates(NotIt):
    """The optimizer follows each backward pass, so each is a step of its own."""

    passes: int
    unit: str

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"the optimizer follows each of {self.passes} backward passes of a {self.unit}"


@dataclass(frozen=True, slots=True)
class UnknownSteps(Undecided):
    """Backward passes that need not be micro-batches of one step."""

    passes: int
    updated: int
    unit: str

    def summary(self) -> str:
        """Return what the evidence does not tell."""
        if self.updated:
            return f"The optimizer follows {self.updated} of {self.passes} backward passes of a {self.unit}."
        return f"Gradients are reduced in each of {self.passes} backward passes; whether each is a step is not known."

    def missing(self) -> str:
        """Return what would record it."""
        return "marked steps: torch.profiler.profile(schedule=...) and profiler.step() after each"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the reductions of each micro-batch."""
    cause = CAUSE.id
    if answer := no_backward(view, cause):
        return answer
    steps = view.reductions
    micros = round(steps.typical(lambda step: step.micros))
    if micros < 2 or not steps.typical(lambda step: len(_needless(step))):
        return [ruled_out(cause, MicroBatches(micros))]
    updated = round(steps.typical(lambda step: step.updated))
    if updated >= micros:
        return [ruled_out(cause, Updates(micros, view.unit))]
    if updated > 1 or (updated == 0 and view.unit == "window"):
        return [undecided(cause, UnknownSteps(micros, updated, view.unit))]
    # On CPU the transfer takes the cores that compute needs, so all of it counts.
    cost = steps.typical(
        lambda step: sum(call.exposed_transfer if view.on_device else call.transfer for call in _needless(step)) / MS
    )
    needless = _needless(steps.sample)
    facts = ReducedInEach(
        cost=cost_of(view, cost),
        micros=micros,
        sharded=any(call.message.op == "reduce_scatter" for call in needless),
        micro_batch_size=view.declared("train.micro_batch_size") or 1,
    )
    size = f", {bytes_text(total_bytes(needless))} for nothing" if total_bytes(needless) else ""
    count = f"{len(needless)} of {len(steps.sample.inside)} reductions of a step"
    return judged(view, cause, facts, f"{count} precede the last micro-batch{size}")


def _needless(step: StepReductions) -> list[CallProfile]:
    """Return the reductions before the last micro-batch, when they repeat what the last one reduces."""
    last, early = step.last(), [call for call in step.inside if call.micro < step.micros - 1]
    least = _REPEATED * (step.micros - 1)
    if not last or len(early) < least * len(last):
        return []
    early_bytes, last_bytes = (sum(call.message.size_bytes for call in calls) for calls in (early, last))
    return early if early_bytes >= least * last_bytes else []


CAUSE = step_cause(
    id="overlap.accumulation_sync",
    title="gradients are reduced in every micro-batch",
    branch="slow.reduction",
    decide=decide,
    decided_from="traces: the reductions of each backward pass of a step",
    remedy="no_sync in all micro-batches but the last",
    example=example("accumulation"),
)
