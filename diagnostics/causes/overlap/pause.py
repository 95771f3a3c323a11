"""The host pauses: it does other work, which the trace names, or stops for a few long stretches."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._idle import CPU_SHARE, idle, judged_idle
from diagnostics.causes.overlap._shared import step_cause
from diagnostics.contract.findings import LIKELY, Finding

_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the idle time while the host does other work, or in the few longest stretches of a step."""
    pauses = idle(view, "pause")
    if not view.on_device and (not pauses.work or pauses.ms < CPU_SHARE * view.step_ms):
        return _TEXTS.ruled_out("on_cpu", share=CPU_SHARE)
    row = pauses.work if pauses.work in _TEXTS else "within" if pauses.within else "unknown"
    kind = f" ({pauses.work})" if pauses.work else ""
    return judged_idle(view, pauses, LIKELY, _TEXTS, row, kind=kind)


CAUSE = step_cause(__file__, decide)
