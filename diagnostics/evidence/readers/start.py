"""How far each rank was on its way to its process group: the files that `dtk watch` lets ranks write while they start.

Gives one fact for each file: state `started`, `meets` (within init_process_group) or `met`. Decides nothing.
"""

from pathlib import Path
from typing import Any

from diagnostics.evidence.calls import is_library
from diagnostics.evidence.limits import Limits, small_json
from diagnostics.evidence.model import Frame, LogFact
from diagnostics.evidence.reader import Contents, Reader

KIND = "start"
MAX_FRAMES = 64
STATES = ("started", "meets", "met")


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is one."""
    return head.startswith(b'{"dtk_start":')


def read(path: Path, file: str, limits: Limits) -> LogFact:
    """One file; the fields are `state`, `nranks`, `attempt`, `pid`, `host`, `since_s` (of the state), `alive_s` (when
    it was written), `worked_s` (when the main thread last moved or worked) and `frames`, innermost first.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged or too large.
    """
    value = small_json(path, limits)
    rank, nranks, state = value.get("rank"), value.get("world_size"), value.get("state")
    if type(rank) is not int or type(nranks) is not int or not 0 <= rank < nranks or state not in STATES:
        raise ValueError("no start of a rank")
    times = {name: _number(value.get(name)) for name in ("since_s", "alive_s", "worked_s")}
    raw = value.get("frames")
    frames = tuple(filter(None, map(_frame, raw[:MAX_FRAMES] if isinstance(raw, list) else [])))
    fields = {"state": state, "nranks": nranks, "pid": value.get("pid"), "host": str(value.get("host")), **times}
    text = {"started": "on its way", "meets": "in init_process_group", "met": "in its process group"}[state]
    return LogFact(KIND, rank, file, 0, f"rank {rank} is {text}", {**fields, "frames": frames}, times["alive_s"])


def own_frame(fact: LogFact) -> Frame | None:
    """Return the innermost frame of the user's script in a start fact."""
    frames: tuple[Frame, ...] = fact.fields["frames"]
    return next((frame for frame in frames if not is_library(frame.file)), None)


def _number(value: Any) -> float:
    """Seconds since 1970."""
    if type(value) not in (int, float) or not 0 <= value < 1e11:
        raise ValueError("no start of a rank")
    return float(value)


def _frame(value: Any) -> Frame | None:
    if not isinstance(value, list) or len(value) != 3 or type(value[1]) is not int:
        return None
    return Frame(str(value[0])[:4096], value[1], str(value[2])[:256])


READER = Reader(
    kind=KIND,
    title="",
    recognise=recognise,
    open=lambda source: Contents(source.file, facts=[read(source.path, source.file, source.limits)]),
    facts=(KIND,),
)
