"""The host waits for the device within the step, so the device idles until it is given work again."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import StepCost, Words, on_cpu, step_cause
from diagnostics.contract.findings import Finding


def _words(cost: StepCost, *, within: str) -> Words:
    return Words(
        seen="idle after the host waited for the device",
        summary=f"The host waits for the device within the step ({within}), and the device then idles until it is "
        f"given work again: {cost}.",
        change=f"take {within} out of the step: keep values on the device, read them every N steps, copy with "
        "`non_blocking=True`",
        why="the host can then launch ahead",
    )


def decide(view: Overview) -> Finding:
    """Decide it by the idle time that begins while the host waits for the device."""
    waits = idle(view, "sync")
    shown = f"{waits.count} stretches without work begin while the host stands in {waits.within}"
    return judged_idle(view, waits, shown, 0.9, _words, within=waits.within)


CAUSE = step_cause(__file__, decide, unless=(on_cpu("no host waits for a device"),))
