"""A rank left without an exception or a signal while others waited for it.

Ranks that exit together after they have waited are not blamed: what they waited for came first.
"""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _endings
from diagnostics.causes.hang._endings import EXIT_CODE, Ended
from diagnostics.contract.findings import Finding, Remedy, Text

ID = "hang.rank_exited"


def _text(finding: Finding, ended: Ended) -> Text:
    first, there = ended.first, ended.gave_up_at
    if first.only_exit_code:
        remedy = ended.remedy(finding, {"": EXIT_CODE})
        return ended.text(finding, f"ended with {first.what} without a traceback", (remedy,))
    change = "let all ranks decide together when to stop (all_reduce a stop flag)"
    if there:
        change += (
            f"; if its work was done, rank {there.rank} calls one more at {there.file}:{there.line}: let all ranks "
            "call it, or none"
        )
    remedy = Remedy("code", change, "a rank that ends by itself leaves the others in their next collective")
    how = "ended in order with exit code 0" if first.in_order else f"ended: {first.what}"
    return ended.text(finding, how, (remedy,))


def decide(stall: Stall) -> list[Finding]:
    """Decide it by the endings of the ranks."""
    case = _endings.first_to_end(stall, "exited")
    if case is None:
        return [_endings.unconfirmed(stall, ID, _endings.LAUNCHER_LOG, vanished=True)]
    confidence = _endings.CONFIDENCE if case.culprits else _endings.UNNAMED_CONFIDENCE
    return [_endings.confirmed(stall, ID, case, _text, confidence)]


CAUSE = declared(__file__, explain, decide)
