"""`checkpoint.lost_state`: the loss after a resume is far above the loss before it."""

from diagnostics.analysis.printed_pairs import worse_after_resume
from diagnostics.analysis.printed_steps import RATIO, PrintedSteps, printed_steps, step_text
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.findings import PLAUSIBLE, EvidenceItem, Finding, confirmed

_TEXTS = Texts(__file__)
_AT_START = 0.9  # Fraction of the first loss of the run, which is the loss of an untrained model.


def decide(job: PrintedSteps) -> Finding:
    """Decide from steps that continue an earlier course, in the same log or in another, and overlap with it."""
    case = worse_after_resume(job)
    if case is None:
        return _TEXTS.undecided()
    earlier, resumed, before, after = case
    items = (
        EvidenceItem("log", earlier.file, _TEXTS.phrase("before", loss=before), earlier.rows[-1][3]),
        EvidenceItem("log", resumed.file, _TEXTS.phrase("after", loss=after), resumed.rows[0][3]),
    )
    at_once = resumed.rows[0][1] > RATIO * before  # With the weights alone, the loss rises after some steps.
    row = "weights" if at_once and after >= _AT_START * earlier.rows[0][1] else "rest"
    step = resumed.rows[0][0]
    facts = _TEXTS.facts(row, before=before, after=after, at=step_text(step))
    return confirmed(facts=facts, confidence=PLAUSIBLE, step=int(step) or None, evidence=items)


CAUSE = declared(__file__, printed_steps, decide)
