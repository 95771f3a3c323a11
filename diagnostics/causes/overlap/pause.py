"""The host pauses: it does other work, which the trace names, or nothing that the trace shows."""

from msgspec.structs import replace

from diagnostics.analysis.step_profile.account import MOST
from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import step_cause
from diagnostics.contract.findings import LIKELY, SUSPECTED, Finding

_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the idle time while the host does other work, or runs nothing that the trace shows."""
    pauses = idle(view, "pause")
    if not view.on_device and not pauses.work:
        return _TEXTS.ruled_out("on_cpu")
    row = (
        pauses.work if pauses.work in _TEXTS else "within" if pauses.within else "code" if pauses.caller else "unknown"
    )
    is_once = row in ("code", "unknown") and all(len(profile.steps) == 1 for profile in view.profiles)
    if is_once and pauses.ms >= MOST * view.step_ms:
        return _TEXTS.undecided("once", idle=pauses, step_ms=view.step_ms, unit=view.unit)
    is_seldom = pauses.ms < MOST * view.step_ms <= pauses.mean_ms  # Whether a pause of few steps recurs is not known.
    pauses, sure = (replace(pauses, ms=pauses.mean_ms), SUSPECTED) if is_seldom else (pauses, LIKELY)
    called = _TEXTS.phrase("called", idle=pauses) if pauses.caller else ""
    return judged_idle(view, pauses, sure, _TEXTS, row, called=called, kind=pauses.work and f" ({pauses.work})")


CAUSE = step_cause(__file__, decide)
