"""The host pauses: it does something else, which the trace names, or stops for a few long stretches."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import StepCost, Words, figure, on_cpu, step_cause
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Finding
from diagnostics.contract.formatting import counted
from diagnostics.evidence.trace.host_work import HostWork

_KINDS = table_beside(__file__)["kinds"]
"""Kind of work -> what the host pauses for (`purpose`), what to change, and why."""


def _words(cost: StepCost, *, kind: HostWork, longest_ms: float, within: str) -> Words:
    """Put it into words; `within` is the innermost operation or annotation around most of the pauses."""
    entry = _KINDS.get(kind, {})
    purpose, change = entry.get("purpose", ""), entry.get("change", "")
    doing = f" {purpose} ({within})" if purpose else f", most of the time within {within}" if within else ""
    unknown = "" if doing else " The trace does not show what the host does then."
    if not change:
        look = f"find out what the host does within {within}"
        if not within:
            look = "record stacks (`with_stack=True`) to see what the host does in the longest gap"
        change = f"{look} (garbage collection, a checkpoint, logging, a request), and move it out of the step"
    return Words(
        seen="idle in pauses of the host",
        summary=f"The host pauses{doing}, and the device idles meanwhile: {cost}; the longest pause takes "
        f"{figure(longest_ms)} ms.{unknown}",
        change=change,
        why=entry.get("why", "launches continue only when it is over"),
    )


def decide(view: Overview) -> Finding:
    """Decide it by the idle time in which the host does something else, or in the few longest stretches of a step."""
    pauses = idle(view, "pause")
    kind = f" ({pauses.work})" if pauses.work else ""
    shown = f"{counted(pauses.count, 'pause')}{kind}, the longest {figure(pauses.longest_ms)} ms"
    return judged_idle(
        view, pauses, shown, 0.85, _words, kind=pauses.work, longest_ms=pauses.longest_ms, within=pauses.within
    )


CAUSE = step_cause(__file__, decide, unless=(on_cpu("no host waits for a device"),))
