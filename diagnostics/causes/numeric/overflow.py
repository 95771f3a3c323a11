"""`numeric.overflow`: gradients overflow in float16 step after step, and loss scaling does not stop it."""

import math
import re

from diagnostics.analysis.printed_steps import SCALE_ENDS, PrintedSteps, fallen_scale, printed_steps, skipped_to_the_end
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import CERTAIN, PLAUSIBLE, SEEN, EvidenceItem, Finding, confirmed
from diagnostics.evidence.model import CLAUSE, shortened

_TEXTS, _GAVE_UP = Texts(__file__), re.compile(table_beside(__file__)["gave_up"])


def decide(job: PrintedSteps) -> Finding:
    """Decide from skipped steps that continue to the end of the log, and from the error that trainers raise then.

    A few skipped steps at the start are normal while the loss scale is calibrated.
    """
    gave_up = [error for error in job.errors if _GAVE_UP.search(error.message)]
    error = gave_up[0] if gave_up else None
    case = next((case for log in job.logs if (case := skipped_to_the_end(log) or fallen_scale(log))), None)
    if case is None and error is None:
        return _TEXTS.ruled_out(count=job.count) if job.count else _TEXTS.undecided()
    items = [EvidenceItem("log", case.file, _TEXTS.phrase("seen", count=case.count), case.line)] if case else []
    items += [EvidenceItem("error", error.file, shortened(error.message), error.line or None)] if error else []
    fell = case is not None and not math.isnan(case.began)
    rows = [] if case is None else ["fell" if fell else "skipped" if math.isnan(case.scale) else "skipped_scale"]
    rows += [] if error is None else ["gave_up"]
    return confirmed(
        facts=_TEXTS.facts(
            [*rows, "default"],
            count=case.count if case else 0,
            scale=case.scale if case else 0.0,
            began=case.began if case else 0.0,
            error=shortened(error.message, CLAUSE).rstrip(".") if error else "",
        ),
        confidence=SEEN if error is not None else PLAUSIBLE if fell or (case and case.scale > SCALE_ENDS) else CERTAIN,
        victims=tuple(sorted({error.rank for error in gave_up if error.rank is not None})),
        evidence=tuple(items),
    )


CAUSE = declared(__file__, printed_steps, decide)
