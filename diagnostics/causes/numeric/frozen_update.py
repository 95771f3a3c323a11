"""`numeric.frozen_update`: steps are made, and the weights do not change."""

from itertools import takewhile

from diagnostics.analysis.printed_pairs import Course, courses, frozen_beside
from diagnostics.analysis.printed_steps import WINDOW, PrintedSteps, printed_steps
from diagnostics.causes.declared import declared
from diagnostics.causes.numeric._printed import not_to_the_end
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, worded

ID = "numeric.frozen_update"
_TABLE = table_beside(__file__)
_EXACT = 6
"""Characters of a loss, as `0.6931`: one that is printed with fewer digits repeats by itself."""


def _words(finding: Finding, shows: str) -> Text:
    remedy = Remedy("code", _TABLE["change"], _TABLE["why"])
    return Text(summary=f"The weights do not change: {shows}.", measured=shows, remedies=(remedy,))


def _shows(course: Course) -> str:
    """Return what shows it in the last steps of one run; empty where they are those of a run that learns."""
    norms = [*takewhile(lambda row: row[2] == 0 and row[1] > 0, reversed(course.rows))]
    same = [*takewhile(lambda row: row[1] == course.rows[-1][1] > 0, reversed(course.rows))]
    if len(norms) >= WINDOW:
        return f"the gradient norm is exactly 0 in the last {len(norms):,} steps"
    is_exact = len(same) >= WINDOW and len(str(same[0][1])) >= _EXACT
    return f"the loss is {same[0][1]} in each of the last {len(same):,} steps" if is_exact else ""


def decide(job: PrintedSteps) -> list[Finding]:
    """Decide from gradient norms of 0, a loss that stays the same to its last digit, or another run that learns."""
    ends = [parts[-1] for log in job.logs if (parts := courses(log))]
    case = next(((course, shows) for course in ends if (shows := _shows(course))), None)
    if case is None and (beside := frozen_beside(job)):
        case = beside, "the loss stays where it began, and falls in the other run from the same start"
    if case is None:
        return [not_to_the_end(ID, job, "{count:,} recorded steps of runs whose loss and gradients change")]
    item = EvidenceItem("log", case[0].file, case[1], case[0].rows[-1][3])
    facts = worded(_words, shows=case[1])
    return [Finding(cause=ID, status="confirmed", facts=facts, confidence=0.8, evidence=(item,))]


CAUSE = declared(__file__, printed_steps, decide)
