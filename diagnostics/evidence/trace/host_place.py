"""Which functions a host thread was in at moments of a trace (`with_stack=True`); its line is the function's head."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Frame
from diagnostics.evidence.trace.memory_marks import FUNCTION, HostEvent
from diagnostics.evidence.trace.scan import Scan

_NAME = re.compile(r"(.{1,1024}\.py)\((\d{1,9})\): (.{1,256})", re.DOTALL)


def stacks_at(path: Path, limits: Limits, moments: Sequence[tuple[float, int]]) -> list[list[Frame]]:
    """Return the Python functions that were running at each moment, innermost first, including torch's.

    Args:
        path: of the trace.
        limits: for files.
        moments: (us in the trace's own clock, thread of the host as the trace numbers them).

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no trace.
    """
    of_thread: dict[int | str, list[tuple[float, int]]] = {}
    for at, (time_us, thread) in enumerate(moments):
        of_thread.setdefault(thread, []).append((time_us, at))
    for times in of_thread.values():
        times.sort()
    names_at: list[list[tuple[float, str]]] = [[] for _ in moments]
    for batch in Scan(path, limits, HostEvent).batches():
        for event in batch:
            if event.cat != FUNCTION or (waiting := of_thread.get(event.tid)) is None:
                continue
            until = event.ts + event.dur
            for time_us, at in islice(waiting, bisect_left(waiting, (event.ts, -1)), None):
                if time_us > until:
                    break
                names_at[at].append((event.ts, event.name))
    return [
        [Frame(m[1], int(m[2]), m[3]) for _, name in sorted(names, reverse=True) if (m := _NAME.fullmatch(name))]
        for names in names_at
    ]
