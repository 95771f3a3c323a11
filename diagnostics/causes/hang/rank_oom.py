"""A rank ran out of memory, on the host or on its device."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _endings
from diagnostics.causes.hang._endings import HOST_MEMORY, Ended, changes_beside
from diagnostics.contract.findings import Finding, Text

_TEXTS = Texts(__file__)
_UNNAMED_DEVICE_CONFIDENCE = 0.45
"""A device's memory ran out in a process without a rank: that one rank differed from its peers is not shown, so it is a
suspicion beside those about what takes the memory."""
CHANGES = {"cgroup": HOST_MEMORY, "host_memory": HOST_MEMORY} | changes_beside(__file__)


def _text(finding: Finding, ended: Ended) -> Text:
    remedies = [ended.remedy(finding, CHANGES, ended.first.detail)]
    if ended.is_dtk_run and ended.first.detail not in CHANGES.keys() - {""}:
        remedies.insert(0, _TEXTS.remedy("micro_batch"))
    return ended.text(finding, _TEXTS.phrase("how", what=ended.first.summary), tuple(remedies))


def decide(stall: Stall) -> Finding:
    """Decide from the endings of the ranks."""
    case = _endings.first_to_end(stall, "oom")
    if case is None:
        return _endings.unconfirmed(stall, "oom", _endings.ERROR_FILES)
    confidence = _endings.CONFIDENCE
    if not case.culprits:
        on_device = case.first.signal is None and not case.first.detail
        confidence = _UNNAMED_DEVICE_CONFIDENCE if on_device else _endings.UNNAMED_CONFIDENCE
    return _endings.confirmed(stall, case, _text, confidence)


CAUSE = declared(__file__, explain, decide)
