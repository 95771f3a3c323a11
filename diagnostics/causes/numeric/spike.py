"""`numeric.spike`: the loss went up at once and did not come back."""

import math

from diagnostics.analysis.printed_steps import Jump, PrintedSteps, jump, printed_steps
from diagnostics.causes.declared import declared
from diagnostics.causes.numeric._printed import not_to_the_end
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, worded

ID = "numeric.spike"
_GRADIENT = 3.0
"""Ratio of the gradient norm after a jump to the one before by which the jump is the training's, not the data's."""


def _words(finding: Finding, case: Jump) -> Text:
    at = "" if math.isnan(case.step) else f" at step {case.step:g}" if case.step >= 1 else f" at epoch {case.step:g}"
    norm = f", the gradient norm from {case.norms[0]:.3g} to {case.norms[1]:.3g}" if case.norms else ""
    return Text(
        summary=(
            f"The loss went from {case.before:.3g} to {case.after:.3g}{at}{norm}, and stayed there for the "
            f"{case.steps_after:,} steps that the log still shows."
        ),
        measured=f"loss {case.before:.3g} before, {case.after:.3g} after",
        remedies=(
            Remedy(
                "code",
                "go back to the last checkpoint before it, and skip the batches around it or lower the learning rate",
                "a run that has diverged does not recover at the same learning rate",
            ),
            Remedy("code", "clip gradients (1.0), warm up for longer, Adam's beta2 at 0.95", "fewer large steps"),
            Remedy("code", "look at the samples of that step", "a broken or other data set jumps as well"),
        ),
    )


def decide(job: PrintedSteps) -> list[Finding]:
    """Decide from the printed losses: a jump far above their noise that lasts until the log ends."""
    case = next((case for log in job.logs if (case := jump(log))), None)
    if case is None:
        return [not_to_the_end(ID, job, "{count:,} printed steps without a jump that lasts")]
    by_gradient = case.norms is not None and case.norms[1] > _GRADIENT * case.norms[0]
    detail = f"loss {case.after:.3g} from here on, {case.before:.3g} before"
    return [
        Finding(
            cause=ID,
            status="confirmed",
            facts=worded(_words, case=case),
            confidence=0.9 if by_gradient else 0.75,
            step=None if math.isnan(case.step) or case.step < 1 else int(case.step),
            evidence=(EvidenceItem("log", case.file, detail, case.line),),
        )
    ]


CAUSE = declared(__file__, printed_steps, decide)
