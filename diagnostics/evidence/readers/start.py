"""Files that starting ranks write under `dtk watch`: how far each rank is in creating its process group."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from diagnostics.evidence.limits import Limits, small_json
from diagnostics.evidence.model import MOST_RANKS, Evidence, Frame, LogFact, Rank, Time
from diagnostics.evidence.reader import Contents, Reader

KIND = "start"
MAX_FRAMES = 64


class _Start(msgspec.Struct):
    rank: Rank
    world_size: Annotated[int, msgspec.Meta(le=MOST_RANKS)]
    state: Literal["started", "meets", "met"]
    since_s: Time
    alive_s: Time
    worked_s: Time
    pid: int | None = None
    host: Any = None
    frames: Any = None


def read(path: Path, file: str, limits: Limits) -> LogFact:
    """Read one file; raises OSError or ValueError, like `Reader.open`.

    The fact's fields are `state`, `nranks`, `attempt`, `pid`, `host`, `since_s` (of the state), `alive_s` (when it
    was written), `worked_s` (when the main thread last moved or worked) and `frames`, innermost first.
    """
    try:
        start = msgspec.convert(small_json(path, limits), _Start)
    except msgspec.ValidationError as problem:
        raise ValueError(f"not a record of a rank's start: {problem}") from problem
    if start.rank >= start.world_size:
        raise ValueError(f"not a record of a rank's start: rank {start.rank} of {start.world_size}")
    frames = tuple(
        Frame(str(frame[0])[:4096], frame[1], str(frame[2])[:256])
        for frame in (start.frames[:MAX_FRAMES] if isinstance(start.frames, list) else ())
        if isinstance(frame, list) and len(frame) == 3 and type(frame[1]) is int
    )
    fields = {name: getattr(start, name) for name in ("state", "pid", "since_s", "alive_s", "worked_s")}
    fields |= {"nranks": start.world_size, "host": str(start.host), "frames": frames}
    return LogFact(KIND, start.rank, file, fields=fields, time_s=start.alive_s)


def watched(evidence: Evidence) -> bool:
    """Return whether the files are those of a job under `dtk watch`, which alone records how the ranks start."""
    return evidence.run is None and any(fact.kind == KIND for fact in evidence.facts)


READER = Reader(
    kind=KIND,
    recognise=lambda head: head.startswith(b'{"dtk_start":'),
    open=lambda source: Contents(source.file, facts=[read(source.path, source.file, source.limits)]),
    facts=(KIND,),
)
