"""Which ranks' calls differ, and how: one owner for post-mortems, the live watch, watchdog logs and the preflight.

`find` answers for all ranks of a job from their histories (`diagnostics.analysis.histories`). `between` compares the
sides of one `Vote`, for callers that hold histories in memory: count the sides with `count_votes`, and hand over a
function that returns a rank's calls. `explain` compares two lists of calls. The result is data: who is in the minority,
what it did (`Kind`), the calls, the evidence with its weights, and other kinds that explain the calls as well.
When two calls are the same is defined in `identity`, and nowhere else.
"""

from diagnostics.analysis.divergence.evidence_terms import support
from diagnostics.analysis.divergence.explanation import (
    Deviation,
    Explanation,
    Kind,
    Place,
    explain,
    explain_exit,
    program_order,
)
from diagnostics.analysis.divergence.find import (
    UNCLEAR_CONFIDENCE,
    Divergence,
    Vote,
    between,
    count_votes,
    find,
    first_vote,
    independent,
)
from diagnostics.analysis.divergence.identity import at_line, differing_parts, in_backward, on_path
from diagnostics.analysis.divergence.prediction import Prediction, predict
from diagnostics.analysis.divergence.whole_programs import Program, compare_programs

__all__ = [
    "UNCLEAR_CONFIDENCE",
    "Deviation",
    "Divergence",
    "Explanation",
    "Kind",
    "Place",
    "Prediction",
    "Program",
    "Vote",
    "at_line",
    "between",
    "compare_programs",
    "count_votes",
    "differing_parts",
    "explain",
    "explain_exit",
    "find",
    "first_vote",
    "in_backward",
    "independent",
    "on_path",
    "predict",
    "program_order",
    "support",
]
