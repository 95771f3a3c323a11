"""Records of a watched job: why the watch ended its ranks, that its command ended well, that a rank was suspended."""

import re
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.contract.artifacts import FINISHED, PAUSED
from diagnostics.evidence.limits import Limits, small_json
from diagnostics.evidence.model import Evidence, LogFact, shortened
from diagnostics.evidence.reader import Contents, Reader
from diagnostics.evidence.values import Rank, Time

VERDICT, ENDED_WELL = "watch_verdict", "command_finished"
_KINDS = f"(?:stall|desync|{FINISHED}|{PAUSED})".encode()
_HEAD = re.compile(rb'\{\s{0,8}"kind": "' + _KINDS + rb'",\s{0,8}"(?:reason|command|rank)": ')


class _Paused(msgspec.Struct):
    rank: Rank
    pauses: list[tuple[Time, Time]]


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
    if value.get("kind") == PAUSED:
        return _paused(value, file)
    time_s, reason = value.get("time_s"), value.get("reason", "")
    if not isinstance(time_s, int | float) or not 0 <= time_s < 1e11 or not isinstance(reason, str):
        raise ValueError("not a record of the watch")
    if value.get("kind") == FINISHED:
        return LogFact(ENDED_WELL, None, file, 0, "the command ended with exit code 0", {}, float(time_s))
    return LogFact(VERDICT, None, file, 0, shortened(reason, 400), {}, float(time_s))


def _paused(value: dict[str, Any], file: str) -> LogFact:
    """Return the fact of a rank that was suspended, with `pauses`: (when it began, how many seconds it lasted)."""
    try:
        record = msgspec.convert(value, _Paused)
    except msgspec.ValidationError as problem:
        raise ValueError(f"not a record of a pause: {problem}") from problem
    longest_s = max((lasted_s for _, lasted_s in record.pauses), default=0.0)
    text = f"rank {record.rank} was suspended for {longest_s:.1f} s"
    return LogFact(PAUSED, record.rank, file, 0, text, {"pauses": tuple(record.pauses)}, None)


READER = Reader(
    kind="watch",
    recognise=recognise,
    open=lambda source: Contents(source.file, facts=[read(source.path, source.file, source.limits)]),
    facts=(VERDICT, ENDED_WELL, PAUSED),
)
