"""A rank exited without an exception or a signal while others waited for it.

Ranks that exit together after they have waited are not blamed: the event they waited for came first.
"""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _endings
from diagnostics.causes.hang._endings import EXIT_CODE, Ended
from diagnostics.contract.findings import OPEN, PROBABLE, SEEN, SUSPECTED, Finding, Text

_TEXTS = Texts(__file__)


def _text(finding: Finding, ended: Ended) -> Text:
    first, peer_frame = ended.first, ended.gave_up_at
    if first.only_exit_code:
        remedy = ended.remedy(finding, {"": EXIT_CODE})
        return ended.worded(finding, _endings.TEXTS.phrase("no_traceback", what=first.summary), (remedy,))
    remedy = _TEXTS.remedy("one_more" if peer_frame else "stop_together", peer_frame=peer_frame)
    return ended.worded(
        finding, _TEXTS.phrase("in_order" if first.in_order else "ended", what=first.summary), (remedy,)
    )


def decide(stall: Stall) -> Finding:
    """Decide from the endings of the ranks."""
    case = _endings.first_to_end(stall, "exited")
    if case is None:
        return _endings.unconfirmed(stall, "exited", _endings.LAUNCHER_LOG, vanished=True)
    # Where the others were only stopped, they may have been about to end so too.
    confidence = OPEN if case.tie else PROBABLE if not case.culprits else SEEN if case.awaited else SUSPECTED
    # Where one rank alone waits, it may be that one which made a call more.
    return _endings.confirmed(stall, case, _text, min(confidence, SUSPECTED) if case.alone else confidence)


CAUSE = declared(__file__, explain, decide)
