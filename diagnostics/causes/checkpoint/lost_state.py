"""`checkpoint.lost_state`: the loss behind a resume is far above that before it."""

from diagnostics.analysis.printed_pairs import Course, worse_after_resume
from diagnostics.analysis.printed_steps import PrintedSteps, printed_steps
from diagnostics.causes.declared import declared
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, undecided, worded

ID = "checkpoint.lost_state"
_TABLE = table_beside(__file__)
_AT_START = 0.9
"""Of the first loss of the run: there a model stands that learnt nothing."""


def _words(finding: Finding, one: Course, before: float, after: float) -> Text:
    entry = _TABLE["weights" if after >= _AT_START * one.rows[0][1] else "rest"]
    return Text(
        summary=f"The loss was {before:.3g} before a resume at step {finding.step}, now {after:.3g}: {entry['what']}.",
        measured=f"loss {before:.3g} before, {after:.3g} after",
        remedies=(Remedy("code", entry["change"], "a resumed run continues at the loss at which it stopped"),),
    )


def decide(job: PrintedSteps) -> list[Finding]:
    """Decide from steps that continue, in the same log or in another, where an earlier course has them too."""
    case = worse_after_resume(job)
    if case is None:
        return [undecided(ID, "No recorded steps show a worse loss after a resume.", "the logs before and after it")]
    one, resumed, before, after = case
    items = (
        EvidenceItem("log", one.file, f"loss {before:.3g} up to here", one.rows[-1][3]),
        EvidenceItem("log", resumed.file, f"loss {after:.3g} from here on", resumed.rows[0][3]),
    )
    facts = worded(_words, one=one, before=before, after=after)
    step = int(resumed.rows[0][0])
    return [Finding(cause=ID, status="confirmed", facts=facts, confidence=0.75, step=step, evidence=items)]


CAUSE = declared(__file__, printed_steps, decide)
