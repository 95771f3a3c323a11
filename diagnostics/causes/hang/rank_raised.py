"""A rank raised an exception, and its peers wait for collectives that it never reaches."""

import re

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _endings
from diagnostics.causes.hang._endings import EXIT_CODE, Change, Ended, changes_beside
from diagnostics.causes.hang._parts import left_open
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import CERTAIN, OPEN, POSSIBLE, PROBABLE, SEEN, Finding, Text
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.endings import Ending

_WORKER = "/dtk/rank/worker.py"  # Part of every traceback of a dtk rank; the other files in its package are dtk's own.
TABLE, _TEXTS = table_beside(__file__), Texts(__file__)
CHANGES = changes_beside(__file__)  # Detail of the ending (`evidence.endings.Detail`, or `_raised_in_dtk`) -> fix.
_OF_LAUNCHERS = {"torchrun_failed", "torchrun_list", "launcher_error", "process_left"}
_HEAD_LINES = 20  # Chosen: a launcher's traceback is as long, and what a program prints rarely as short.


def _text(finding: Finding, ended: Ended) -> Text:
    first, more = ended.first, None
    if ended.case.model:
        names, rest = [end.rank for end in ended.case.endings], ended.case.victims
        more = _TEXTS.phrase(ended.case.model, names=names, who=ended.case.culprits, rest=rest)
    how = _TEXTS.phrase("how", what=first.summary)
    if first.only_exit_code:
        how = _endings.TEXTS.phrase("no_traceback", what=first.summary)
    return ended.worded(finding, how, (_endings.filled(_change(first), first.summary, finding.where),), more)


def _change(end: Ending) -> Change:
    """Return the fix, based on what is known about the exception."""
    if end.only_exit_code:
        return EXIT_CODE
    if change := CHANGES.get(end.detail or ("in_dtk" if _raised_in_dtk(end) else "")):
        return change
    error_text = "\n".join((end.text, end.side_error, end.message))
    matching = (entry for entry in TABLE["by_text"] if end.type and re.search(entry["text"], error_text))
    entry = next(matching, TABLE["changes"]["default" if end.step is None else "in_a_step"])
    return entry["change"], entry["why"]


def _raised_in_dtk(end: Ending) -> bool:
    """Return whether a dtk rank raised it without any line of the user's code, as users cannot fix dtk's lines."""
    root = next((frame.file.removesuffix(_WORKER) for frame in end.frames if frame.file.endswith(_WORKER)), None)
    file = frame.file if (frame := own_line(end.frames)) is not None else ""
    inside = not file or (file.startswith(f"{root}/dtk/") and not file.startswith(f"{root}/dtk/faults/"))
    return root is not None and inside


def decide(stall: Stall) -> Finding:
    """Decide from the endings of the ranks."""
    case, job = _endings.first_to_end(stall, "raised"), stall.job
    if case is None:
        own = {rank: end.summary for rank, end in job.endings.items() if end.kind == "raised" and end.frames}
        if own and job.finished() and not job.evidence.doubt:
            text = _TEXTS.phrase("continued", who=own, what=next(iter(own.values())))
            return left_open(text, _endings.ERROR_FILES)
        return _endings.unconfirmed(stall, "raised", _endings.ERROR_FILES, vanished=True)
    broken = [fact for fact in job.evidence.facts if fact.kind == "non_finite_loss"]
    if case.first.only_exit_code and broken:
        return left_open(_TEXTS.phrase("stopped", who=case.culprits, text=broken[0].text), _endings.ERROR_FILES)
    facts = [fact for fact in job.evidence.facts if fact.file == case.first.file]
    of_launcher = {fact.line for fact in facts if fact.kind in _OF_LAUNCHERS}
    is_cut = {fact.line for fact in facts} == of_launcher and min(of_launcher, default=_HEAD_LINES + 1) <= _HEAD_LINES
    if case.first.only_exit_code and is_cut:  # A log with nothing but the launcher's words lacks those of the program.
        return left_open(_TEXTS.phrase("cut", who=case.culprits or "a process"), _endings.LAUNCHER_LOG)
    confidence = SEEN
    if case.model:
        confidence = CERTAIN  # DDP compares all ranks with rank 0: that it is the different one is inferred.
    elif not case.culprits:
        # Of an exception that is not shown, a peer may be the cause.
        confidence = PROBABLE if case.first.type else OPEN
    elif case.first.only_exit_code:
        confidence = POSSIBLE  # An exit code of 1 without a traceback usually means an exception.
    return _endings.confirmed(stall, case, _text, confidence)


CAUSE = declared(__file__, explain, decide)
