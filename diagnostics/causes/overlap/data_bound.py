"""The step waits for the data loader."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import StepCost, Words, figure, ruled_out, step_cause
from diagnostics.contract.findings import Finding

_CPU_SHARE = 0.1
"""On CPU the loader's workers take the cores of the step, so less than that is no wait for data."""


def _words(cost: StepCost, *, within: str) -> Words:
    return Words(
        seen="idle while the host waits for data",
        summary=f"The step waits for its data ({within}): {cost}.",
        change="give the DataLoader more `num_workers`, `prefetch_factor=4`, `persistent_workers=True` and "
        "`pin_memory=True`",
        why="batches are then ready before they are needed",
    )


def decide(view: Overview) -> Finding:
    """Decide it by the idle time within the data loader."""
    waits = idle(view, "data")
    if view.worth(waits.ms) and not view.on_device and waits.ms < _CPU_SHARE * view.step_ms:
        sentence = "waiting for data {ms} ms of {step_ms} ms a step, on CPU below {least:.0%}"
        return ruled_out(sentence, ms=figure(waits.ms), step_ms=figure(view.step_ms), least=_CPU_SHARE)
    shown = f"the device idles while the host stands in {waits.within}"
    return judged_idle(view, waits, shown, 0.9, _words, within=waits.within)


CAUSE = step_cause(__file__, decide)
