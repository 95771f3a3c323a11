"""`numeric.spike`: the loss went up, at once or by and by, and did not come back."""

import math
from typing import Any

from diagnostics.analysis.printed_steps import Jump, PrintedSteps, climb, jump, printed_steps
from diagnostics.causes.declared import declared, texts_beside
from diagnostics.causes.numeric._printed import not_to_the_end
from diagnostics.contract.findings import EvidenceItem, Finding, worded

ID = "numeric.spike"
_TEXTS = texts_beside(__file__)
_GRADIENT = 3.0
"""Ratio of the gradient norm after a jump to the one before by which the jump is the training's, not the data's."""
_UNSURE = 0.4  # Shown, and no root cause.


def _figures(case: Jump) -> dict[str, Any]:
    """Return what the texts name beside the case itself: where it went up, and the gradient norm there."""
    at = "" if math.isnan(case.step) else f" at step {case.step:g}" if case.step >= 1 else f" at epoch {case.step:g}"
    norm = f", the gradient norm from {case.norms[0]:.3g} to {case.norms[1]:.3g}" if case.norms else ""
    said = "usual" if case.at_once else "climb"
    return {"said": said, "case": case, "at": at, "since": at.replace(" at ", " from ", 1), "norm": norm}


def decide(job: PrintedSteps) -> list[Finding]:
    """Decide from the losses: a jump far above their noise that lasts, or a climb to far above the first ones."""
    case = next((case for find in (jump, climb) for log in job.logs if (case := find(log))), None)
    if case is None:
        return [not_to_the_end(ID, job, "{count:,} recorded steps without a jump that lasts")]
    by_gradient = case.norms is not None and case.norms[1] > _GRADIENT * case.norms[0]
    detail = f"loss {case.after:.3g} from here on, {case.before:.3g} before"
    return [
        Finding(
            cause=ID,
            status="confirmed",
            facts=worded(_TEXTS, **_figures(case)),
            # Of a loss that never fell it is not known that training is to make it smaller (RL).
            confidence=(0.9 if by_gradient else 0.75) if case.fell or job.known_task else _UNSURE,
            step=None if math.isnan(case.step) or case.step < 1 else int(case.step),
            evidence=(EvidenceItem("log", case.file, detail, case.line),),
        )
    ]


CAUSE = declared(__file__, printed_steps, decide)
