"""Calls, frames and the histories of ranks in memory, for tests of what is concluded from them."""

from collections.abc import Mapping, Sequence
from typing import Any

from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.one_rank import digest
from diagnostics.evidence.calls import Call, Described, Dump, GroupKey, Wire
from diagnostics.evidence.model import Frame
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
    made = Wire(op, () if size is None else (size,), () if size is None else ("float32",))._replace(**(wire or {}))
    stack = () if line is None else (frame(line, function), *callers)
    return Call(key, seq, Described(made, f"{op} [{size}]"), done, more.pop("at_s", START_S + seq), stack=stack, **more)


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
