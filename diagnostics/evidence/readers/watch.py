"""Records of a watched job: why ranks were ended, that its command succeeded, which ranks were suspended or left."""

import re
from math import inf
from pathlib import Path

import msgspec

from diagnostics.contract.artifacts import FINISHED, PAUSED
from diagnostics.evidence.limits import Limits, small_json
from diagnostics.evidence.model import Evidence, LogFact, Rank, Time, shortened
from diagnostics.evidence.reader import Contents, Reader, Source
from diagnostics.evidence.readers import start

VERDICT, ENDED_WELL, IN_ORDER = "watch_verdict", "command_finished", "left_in_order"
_KINDS = f"(?:stall|desync|{FINISHED}|{PAUSED})".encode()
_HEAD = re.compile(rb'\{\s{0,8}"kind": "' + _KINDS + rb'",\s{0,8}"(?:reason|command|rank)": ')
_LAST_BEAT = re.compile(rb'\{"beat": \d{1,20}, "step": [^,]{1,20}, "region": "end", "time_s": (\d{1,11}\.\d{6}), ')


class _Paused(msgspec.Struct):
    rank: Rank
    pauses: list[tuple[Time, Time]]


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is a record of `dtk watch`."""
    return bool(_HEAD.match(head) or _LAST_BEAT.match(head))


def finished(evidence: Evidence) -> bool:
    """Return whether the dtk run, or the command under `dtk watch`, finished successfully."""
    return (evidence.run is not None and evidence.run.state == "finished") or ended_well(evidence)


def verdict_s(evidence: Evidence) -> float:
    """Return when the watch decided that the job hangs, after which it ends the ranks (s since 1970); inf if never."""
    return min((fact.time_s for fact in evidence.facts if fact.kind == VERDICT and fact.time_s), default=inf)


def ended_well(evidence: Evidence) -> bool:
    """Return whether the command under `dtk watch` exited with code 0 and neither a launcher nor a rank failed.

    A script that starts the ranks may exit with 0 whatever becomes of them.
    """
    kinds = {fact.kind for fact in evidence.facts}
    failed = any(error.type and Path(error.file).name == "error.json" for error in evidence.errors)
    never_met = any(fact.kind == start.KIND and fact.fields.get("state") == "meets" for fact in evidence.facts)
    return ENDED_WELL in kinds and "torchrun_list" not in kinds and not (failed or never_met)


def _open(source: Source) -> Contents:
    if last := _LAST_BEAT.match(source.head):
        return Contents(source.file, facts=[LogFact(IN_ORDER, source.owner.rank, source.file, time_s=float(last[1]))])
    return Contents(source.file, facts=[read(source.path, source.file, source.limits)])


def read(path: Path, file: str, limits: Limits) -> LogFact:
    """Read one file; raises OSError or ValueError, like `Reader.open`."""
    value = small_json(path, limits)
    if value.get("kind") == PAUSED:
        try:
            record = msgspec.convert(value, _Paused)
        except msgspec.ValidationError as problem:
            raise ValueError(f"not a record of a pause: {problem}") from problem
        # A rank that was suspended: when each pause began, how many seconds it lasted.
        return LogFact(PAUSED, record.rank, file, fields={"pauses": tuple(record.pauses)})
    time_s, reason = value.get("time_s"), value.get("reason", "")
    if not isinstance(time_s, int | float) or not 0 <= time_s < 1e11 or not isinstance(reason, str):
        raise ValueError("not a record of the watch")
    if value.get("kind") == FINISHED:
        return LogFact(ENDED_WELL, None, file, time_s=float(time_s))
    return LogFact(VERDICT, None, file, 0, shortened(reason, 400), {}, float(time_s))


READER = Reader(kind="watch", recognise=recognise, open=_open, facts=(VERDICT, ENDED_WELL, PAUSED, IN_ORDER))
