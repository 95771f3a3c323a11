"""A rank was killed by a signal that no launcher sends, or its process disappeared."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _endings, _parts
from diagnostics.causes.hang._endings import HOST_MEMORY, Ended, changes_beside
from diagnostics.contract.findings import POSSIBLE, PROBABLE, SEEN, Finding, Text
from diagnostics.evidence.endings import is_fault

_TEXTS = Texts(__file__)
CHANGES = {"cgroup": HOST_MEMORY, "host_memory": HOST_MEMORY} | changes_beside(__file__)


def _text(finding: Finding, ended: Ended) -> Text:
    first, ranks = ended.first, ended.case.ranks or range(max(ended.processes, 1))
    how = _TEXTS.phrase("killed" if first.signal else "vanished", who=ranks, what=first.summary)
    detail = next((name for name in (first.detail, first.signal) if name in CHANGES and name), "")
    detail = detail or ("fault" if is_fault(first.signal) else "")
    return ended.worded(finding, how, (ended.remedy(finding, CHANGES, detail),))


def decide(stall: Stall) -> Finding:
    """Decide from the endings of the ranks, or else from evidence that a rank without a dump aborted."""
    case, missing, job = _endings.first_to_end(stall, "killed"), stall.missing, stall.job
    if case is not None:
        confidence = SEEN if case.culprits else PROBABLE
        return _endings.confirmed(stall, case, _text, confidence)
    if missing is None or missing.abort is None:
        return _endings.unconfirmed(stall, "killed", _endings.LAUNCHER_LOG, vanished=True, silent=True)
    waits = dict.fromkeys(missing.waiting[:2], _TEXTS.phrase("waits"))
    what, figures = missing.abort.summary, {"waiting": missing.waiting, "world": job.world()}
    facts = _TEXTS.facts("aborted", what=what, fixes=(_endings.filled(CHANGES[""], what, ()),), **figures)
    victims, evidence = tuple(rank for rank in missing.waiting if rank not in missing.ranks), [missing.abort.evidence]
    # A peer may cause an abort in C++ code.
    return _parts.confirmed(job, facts, POSSIBLE, evidence=evidence, seen=waits, ranks=missing.ranks, victims=victims)


CAUSE = declared(__file__, explain, decide)
