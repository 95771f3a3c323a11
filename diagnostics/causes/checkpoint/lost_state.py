"""`checkpoint.lost_state`: the loss after a resume is far above the loss before it."""

from diagnostics.analysis.printed_pairs import worse_after_resume
from diagnostics.analysis.printed_steps import PrintedSteps, printed_steps, step_text
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
    sides = ((earlier, "before", before, earlier.rows[-1]), (resumed, "after", after, resumed.rows[0]))
    items = tuple(EvidenceItem("log", run.file, _TEXTS.phrase(side, loss=loss), at[3]) for run, side, loss, at in sides)
    row = "weights" if min(resumed.rows[0][1], after) >= _AT_START * earlier.rows[0][1] else "rest"
    step = resumed.rows[0][0]
    facts = _TEXTS.facts(row, before=before, after=after, at=step_text(step))
    return confirmed(facts=facts, confidence=PLAUSIBLE, step=int(step) or None, evidence=items)


CAUSE = declared(__file__, printed_steps, decide)
