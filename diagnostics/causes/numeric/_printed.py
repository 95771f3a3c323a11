"""Shared by the causes that are decided from printed steps."""

from diagnostics.analysis.printed_steps import PrintedSteps
from diagnostics.causes.declared import Texts
from diagnostics.contract.findings import Finding

_TEXTS = Texts(__file__)


def not_to_the_end(name: str, job: PrintedSteps) -> Finding:
    """Return that the printed steps show no sign of a cause, by the row of this name; undecided without such steps."""
    return _TEXTS.ruled_out(name, count=job.count) if job.count else _TEXTS.undecided("open")
