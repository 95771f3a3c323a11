"""A rank ran out of memory, on the host or on its device."""

from functools import partial

from diagnostics.analysis.memory.out_of_memory import RanOut, ran_out
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _endings
from diagnostics.causes.hang._endings import HOST_MEMORY, Ended, changes_beside
from diagnostics.contract.findings import PROBABLE, SEEN, SUSPECTED, Finding, Text

_TEXTS = Texts(__file__)
CHANGES = {"cgroup": HOST_MEMORY, "host_memory": HOST_MEMORY} | changes_beside(__file__)


def _text(finding: Finding, ended: Ended, record: RanOut | None = None) -> Text:
    detail = ended.first.detail or ("updates" if record is not None and record.updates else "")
    remedies = [ended.remedy(finding, CHANGES, detail)]
    others = record.listed_bytes if record is not None and record.in_use_bytes is not None else None
    if record is not None and (others or 0) >= (record.requested_bytes or 1) and (record.listed_processes or 0) > 1:
        remedies.insert(0, _TEXTS.remedy("crowded", record=record))
    if ended.is_dtk_run and detail not in CHANGES.keys() - {""}:
        remedies.insert(0, _TEXTS.remedy("micro_batch"))
    return ended.worded(finding, _TEXTS.phrase("how", what=ended.first.summary), tuple(remedies))


def decide(stall: Stall) -> Finding:
    """Decide from the endings of the ranks."""
    case = _endings.first_to_end(stall, "oom")
    if case is None:
        return _endings.unconfirmed(stall, "oom", _endings.ERROR_FILES)
    confidence = SEEN
    if not case.culprits:
        on_device = case.first.signal is None and not case.first.detail
        # That one rank differs from its peers is then not shown: a suspicion beside those about what takes the memory.
        confidence = SUSPECTED if on_device else PROBABLE
    records = (record for record in ran_out(stall.job.evidence) if record.rank in (None, case.first.rank))
    return _endings.confirmed(stall, case, partial(_text, record=next(records, None)), confidence)


CAUSE = declared(__file__, explain, decide)
