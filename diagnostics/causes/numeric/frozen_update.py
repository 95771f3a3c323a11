"""`numeric.frozen_update`: steps run, but the weights do not change."""

from collections.abc import Sequence
from itertools import takewhile

from diagnostics.analysis.printed_pairs import Course, courses, frozen_beside
from diagnostics.analysis.printed_steps import WINDOW, PrintedSteps, printed_steps
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.findings import PROBABLE, EvidenceItem, Finding, confirmed
from diagnostics.contract.formatting import Phrase

_TEXTS = Texts(__file__)
_TINY = 1e-7  # Chosen: an update by it changes a loss by less than the digits that are printed.
_EXACT = 6  # Minimum length of a loss, such as `0.6931`: with fewer digits it repeats by chance.


def _shows(course: Course, rates: Sequence[float]) -> Phrase | None:
    """Return the evidence in the last steps of a run; None if the run learns."""
    norms = [*takewhile(lambda row: row[2] == 0 and row[1] > 0, reversed(course.rows))]
    same = [*takewhile(lambda row: row[1] == course.rows[-1][1] > 0, reversed(course.rows))]
    if len(norms) >= WINDOW:
        return _TEXTS.phrase("no_gradient", steps=len(norms))
    if (since := rates[-len(same) :]) and since[0] < since[-1] <= _TINY:  # The first steps of a warm-up.
        return None
    is_exact = len(same) >= WINDOW and len(str(same[0][1])) >= _EXACT
    return _TEXTS.phrase("same_loss", loss=same[0][1], steps=len(same)) if is_exact else None


def decide(job: PrintedSteps) -> Finding:
    """Decide from gradient norms of 0, a loss that is constant in all digits, or another run that learns."""
    ends = [(parts[-1], log.series.lr) for log in job.logs if (parts := courses(log))]
    case = next(((course, shows) for course, rates in ends if (shows := _shows(course, rates))), None)
    if case is None and (beside := frozen_beside(job)):
        case = beside, _TEXTS.phrase("beside")
    if case is None:
        return _TEXTS.ruled_out(count=job.count) if job.count else _TEXTS.undecided()
    item = EvidenceItem("log", case[0].file, case[1], case[0].rows[-1][3])
    return confirmed(facts=_TEXTS.facts(shows=case[1]), confidence=PROBABLE, evidence=(item,))


CAUSE = declared(__file__, printed_steps, decide)
