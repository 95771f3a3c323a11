"""The step waits for the data loader."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import figure, ruled_out, step_cause, words_beside
from diagnostics.contract.findings import Finding

_CPU_SHARE = 0.1
"""On CPU the loader's workers take the cores of the step, so less than that is no wait for data."""
_WORDS = words_beside(__file__)


def decide(view: Overview) -> Finding:
    """Decide it by the idle time within the data loader."""
    waits = idle(view, "data")
    if view.worth(waits.ms) and not view.on_device and waits.ms < _CPU_SHARE * view.step_ms:
        sentence = "waiting for data {ms} ms of {step_ms} ms a step, on CPU below {least:.0%}"
        return ruled_out(sentence, ms=figure(waits.ms), step_ms=figure(view.step_ms), least=_CPU_SHARE)
    shown = f"the device idles while the host stands in {waits.within}"
    return judged_idle(view, waits, shown, 0.9, _WORDS, within=waits.within)


CAUSE = step_cause(__file__, decide)
