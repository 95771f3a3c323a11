"""The host waits for the device within the step, so the device idles until it is given work again."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import on_cpu, step_cause, words_beside
from diagnostics.contract.findings import Finding

_WORDS = words_beside(__file__)


def decide(view: Overview) -> Finding:
    """Decide it by the idle time that begins while the host waits for the device."""
    waits = idle(view, "sync")
    shown = f"{waits.count} stretches without work begin while the host stands in {waits.within}"
    return judged_idle(view, waits, shown, 0.9, _WORDS, within=waits.within)


CAUSE = step_cause(__file__, decide, unless=(on_cpu("no host waits for a device"),))
