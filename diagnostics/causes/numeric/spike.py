"""`numeric.spike`: the loss rose, suddenly or gradually, and did not recover."""

import math

from diagnostics.analysis.printed_steps import FEW, PrintedSteps, jump, printed_steps, step_text
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.findings import CERTAIN, PLAUSIBLE, SUSPECTED, EvidenceItem, Finding, confirmed

_TEXTS = Texts(__file__)
_GRADIENT = 3.0
"""Minimum ratio of the gradient norms after and before a jump that is caused by training rather than by the data."""


def decide(job: PrintedSteps) -> Finding:
    """Decide from the losses: a lasting jump far above their noise, or a climb to far above the first ones."""
    cases = (case for log in job.logs if (case := jump(log)))
    case = min(cases, key=lambda case: not case.at_once, default=None)
    if case is None:
        row = "few" if any(jump(log, FEW) for log in job.logs) else "" if job.count else "open"
        return _TEXTS.undecided(row) if row else _TEXTS.ruled_out(count=job.count)
    by_gradient = case.norms is not None and case.norms[1] > _GRADIENT * case.norms[0]
    at = step_text(case.step)
    figures = {"case": case, "at": f" at {at}" if at else "", "since": f" from {at}" if at else ""}
    norm = _TEXTS.phrase("norm", before=case.norms[0], after=case.norms[1]) if case.norms and by_gradient else ""
    row, is_unsure = "default" if case.at_once else "climb", case.meant or not (case.fell or job.known_task)
    return confirmed(
        facts=_TEXTS.facts([row, *(["meant"] if case.meant else [])], norm=norm, **figures),
        # If the loss never fell, training may not be meant to minimize it (RL).
        confidence=SUSPECTED if is_unsure else CERTAIN if by_gradient else PLAUSIBLE,
        step=None if math.isnan(case.step) or case.step < 1 else int(case.step),
        evidence=(EvidenceItem("log", case.file, _TEXTS.phrase("seen", case=case), case.line),),
    )


CAUSE = declared(__file__, printed_steps, decide)
