"""The host waits for the device within the step, so the device idles until it receives work again."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import on_cpu, step_cause
from diagnostics.contract.findings import CERTAIN, Finding

_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the idle time that starts while the host waits for the device."""
    return judged_idle(view, idle(view, "sync"), CERTAIN, _TEXTS)


CAUSE = step_cause(__file__, decide, unless=(on_cpu("cpu_host"),))
