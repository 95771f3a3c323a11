"""The step waits for the data loader."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import step_cause
from diagnostics.contract.findings import Finding

_CPU_SHARE = 0.1
"""On CPU the loader's workers take the cores of the step, so less than that is no wait for data."""
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide it by the idle time within the data loader."""
    waits = idle(view, "data")
    if view.worth(waits.ms) and not view.on_device and waits.ms < _CPU_SHARE * view.step_ms:
        return _TEXTS.ruled_out("little", ms=waits.ms, step_ms=view.step_ms, least=_CPU_SHARE)
    return judged_idle(view, waits, 0.9, _TEXTS)


CAUSE = step_cause(__file__, decide)
