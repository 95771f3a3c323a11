"""Gradients are reduced in every micro-batch, although only the last one needs it."""

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.reductions import StepReductions, total_bytes
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding
from diagnostics.contract.formatting import bytes_text

_REPEATED = 0.5
"""Share of the last micro-batch's reductions, in number and in bytes, that each earlier one has to repeat."""
_MARKS = "marked steps: torch.profiler.profile(schedule=...) and profiler.step() after each"
_WORDS = shared.words_beside(__file__)


def decide(view: Overview) -> Finding:
    """Decide it by the reductions of each micro-batch."""
    steps = view.reductions
    micros = round(steps.typical(lambda step: step.micros))
    if micros < 2:
        return shared.ruled_out("{micros} micro-batch a step", micros=micros)
    if not steps.typical(lambda step: len(_needless(step))):
        return shared.ruled_out("gradients are reduced in 1 of {micros} micro-batches", micros=micros)
    updated = round(steps.typical(lambda step: step.updated))
    figures = {"updated": updated, "passes": micros, "unit": view.unit}
    if updated >= micros:
        return shared.ruled_out("the optimizer follows each of {passes} backward passes of a {unit}", **figures)
    if updated > 1:
        return shared.undecided(
            "The optimizer follows {updated} of {passes} backward passes of a {unit}.", _MARKS, **figures
        )
    if updated == 0 and view.unit == "window":
        sentence = "Gradients are reduced in each of {passes} backward passes; whether each is a step is not known."
        return shared.undecided(sentence, _MARKS, **figures)
    # On CPU the transfer takes the cores that compute needs, so all of it counts.
    cost = steps.typical(
        lambda step: sum(call.exposed_transfer if view.on_device else call.transfer for call in _needless(step)) / MS
    )
    needless = _needless(steps.sample)
    facts = shared.costly(
        view,
        cost,
        _WORDS,
        case="sharded" if any(call.message.op == "reduce_scatter" for call in needless) else "words",
        micros=micros,
        whole_batch_size=(view.declared("train.micro_batch_size") or 1) * micros,
    )
    size = f", {bytes_text(total_bytes(needless))} for nothing" if total_bytes(needless) else ""
    count = f"{len(needless)} of {len(steps.sample.inside)} reductions of a step"
    return shared.judged(view, facts, f"{count} precede the last micro-batch{size}")


def _needless(step: StepReductions) -> list[CallProfile]:
    """Return the reductions before the last micro-batch, when they repeat what the last one reduces."""
    last, early = step.last(), [call for call in step.inside if call.micro < step.micros - 1]
    least = _REPEATED * (step.micros - 1)
    if not last or len(early) < least * len(last):
        return []
    early_bytes, last_bytes = (sum(call.message.size_bytes for call in calls) for calls in (early, last))
    return early if early_bytes >= least * last_bytes else []


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_backward,))
