"""The host pauses: it does other work, which the trace names, or nothing that the trace shows."""

from diagnostics.analysis.step_profile.account import MOST
from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import costly, step_cause
from diagnostics.contract.findings import LIKELY, Finding

_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the idle time while the host does other work, or runs nothing that the trace shows."""
    pauses = idle(view, "pause")
    if not view.on_device and not pauses.work:
        return _TEXTS.ruled_out("on_cpu")
    row = pauses.work if pauses.work in _TEXTS else "within" if pauses.within else "unknown"
    if (
        row == "unknown"
        and max(len(profile.steps) for profile in view.profiles) == 1
        and pauses.ms >= MOST * view.step_ms
    ):
        return _TEXTS.undecided("once", cost=costly(view, pauses.ms, _TEXTS).cost, count=pauses.count, unit=view.unit)
    kind = f" ({pauses.work})" if pauses.work else ""
    return judged_idle(view, pauses, LIKELY, _TEXTS, row, kind=kind)


CAUSE = step_cause(__file__, decide)
