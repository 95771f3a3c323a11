"""The record of a watched job: why `dtk watch` ended the ranks, or that its command ended with exit code 0."""

import re
from pathlib import Path

from diagnostics.contract.artifacts import FINISHED
from diagnostics.evidence.limits import Limits, small_json
from diagnostics.evidence.model import Evidence, LogFact, shortened
from diagnostics.evidence.reader import Contents, Reader

VERDICT, ENDED_WELL = "watch_verdict", "command_finished"
_HEAD = re.compile(rb'\{\s{0,8}"kind": "(?:stall|desync|' + FINISHED.encode() + rb')",\s{0,8}"(?:reason|command)": ')


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is a record of `dtk watch`."""
    return bool(_HEAD.match(head))


def ended_well(evidence: Evidence) -> bool:
    """Return whether the command under `dtk watch` exited with code 0 and no launcher lists a failure."""
    kinds = {fact.kind for fact in evidence.facts}
    return ENDED_WELL in kinds and "torchrun_list" not in kinds


def read(path: Path, file: str, limits: Limits) -> LogFact:
    """Read one file; raises OSError or ValueError, like `Reader.open`."""
    value = small_json(path, limits)
    time_s, reason = value.get("time_s"), value.get("reason", "")
    if not isinstance(time_s, int | float) or not 0 <= time_s < 1e11 or not isinstance(reason, str):
        raise ValueError("not a record of the watch")
    if value.get("kind") == FINISHED:
        return LogFact(ENDED_WELL, None, file, 0, "the command ended with exit code 0", {}, float(time_s))
    return LogFact(VERDICT, None, file, 0, shortened(reason, 400), {}, float(time_s))


READER = Reader(
    kind="watch",
    recognise=recognise,
    open=lambda source: Contents(source.file, facts=[read(source.path, source.file, source.limits)]),
    facts=(VERDICT, ENDED_WELL),
)
