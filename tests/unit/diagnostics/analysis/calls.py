"""Calls, frames and the histories of ranks in memory, for tests of what is concluded from them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.one_rank import digest
from diagnostics.analysis.stall.job_state import JobState, build
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import Call, Described, Dump, GroupKey, Wire
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact
from tests.unit.diagnostics.analysis.divergence.programs import Memory

DEFAULT = GroupKey("nccl", "0", "default_pg")
START_S = 1e9


def frame(line: int, function: str = "main", file: str = "/job/train.py") -> Frame:
    return Frame(file, line, function)


def call(
    seq: int,
    line: int | None = 10,
    op: str = "all_reduce",
    size: int | None = 8,
    *,
    callers: Sequence[Frame] = (),
    function: str = "main",
    key: GroupKey = DEFAULT,
    done: bool = True,
    wire: Mapping[str, Any] | None = None,
    **more: Any,
) -> Call:
    """A collective; `line=None` has no stack, `wire` replaces parts of its signature."""
    result = Wire(op, () if size is None else (size,), () if size is None else ("float32",))._replace(**(wire or {}))
    stack = () if line is None else (frame(line, function), *callers)
    return Call(
        key, seq, Described(result, f"{op} [{size}]"), done, more.pop("at_s", START_S + seq), stack=stack, **more
    )


def history(*lines: int, start: int = 1, **more: Any) -> list[Call]:
    """Calls from these lines, one after the other; equal lines make equal calls."""
    return [call(start + at, line, size=line, **more) for at, line in enumerate(lines)]


def survey(ranks: Mapping[int, list[Call]], world_size: int | None = None, **dump: Any) -> Survey:
    """All ranks' calls, taken in as from one dump of each."""
    result = Survey()
    result.world_size = world_size
    for rank, calls in ranks.items():
        recorder = calls[0].key.recorder if calls else "nccl"
        own = Dump(rank, f"rank_{rank}", recorder, list(calls), **dump)
        result.take(digest(rank, [Memory(own, own.file, rank)], None))
    result.close()
    return result


def job(ranks: Mapping[int, list[Call]], world_size: int | None = None, **evidence: Any) -> JobState:
    """The state of a job of which each rank left one dump of each recorder, written because something was wrong."""
    dumps = []
    for rank, calls in ranks.items():
        own = grouped((call.key.recorder, call) for call in calls) or {"nccl": []}
        dumps += [Dump(rank, f"rank_{rank}", recorder, alike) for recorder, alike in own.items()]
    members = evidence.pop("members", {})
    for dump in dumps:
        dump.members = {key: own for key, own in members.items() if dump.rank in own}
    files = {"simulation": [Memory(dump, dump.file, dump.rank) for dump in dumps]}
    return build(Evidence(Path(), Limits(), files=files, world_size=world_size, **evidence))


def waiting(seq: int, line: int = 10, key: GroupKey = DEFAULT, **more: Any) -> list[Call]:
    """Calls up to a position, of which the last one did not complete."""
    return [call(at, line, key=key, done=at < seq, **more) for at in range(1, seq + 1)]


def fact(kind: str, rank: int | None = None, line: int = 1, text: str = "", **fields: Any) -> LogFact:
    return LogFact(kind, rank, "train.log", line, text, fields)
