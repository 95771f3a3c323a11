"""Which function of the user's a host thread was in at one moment of a profiler trace (`with_stack=True`).

The profiler notes where functions begin, so the line is that of the function's head. Knows no memory.
"""

import re
import sys
from pathlib import Path

import msgspec

from diagnostics.evidence.calls import is_library
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.memory_trace import FUNCTION
from diagnostics.evidence.model import Frame
from diagnostics.evidence.trace_scan import Scan

_NAME = re.compile(r"(.{1,1024}\.py)\((\d{1,9})\): (.{1,256})", re.DOTALL)


class _Event(msgspec.Struct, gc=False):
    name: str = ""
    cat: str = ""
    ts: int | float = 0
    dur: int | float = 0
    tid: int | str = 0


def function_at(path: Path, limits: Limits, at_us: float, thread: int) -> Frame | None:
    """The innermost one outside torch and the standard library; None where the trace has no such.

    Args:
        path: of the trace.
        limits: for files.
        at_us: in the trace's own clock, without its base.
        thread: of the host, as the trace numbers them.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no trace.
    """
    best: tuple[float, Frame] | None = None
    for batch in Scan(path, limits, _Event).batches():
        for event in batch:
            if event.cat != FUNCTION or event.tid != thread or not event.ts <= at_us <= event.ts + event.dur:
                continue
            if best is not None and event.ts < best[0]:
                continue
            frame = _frame(event.name)
            if frame is not None:
                best = (event.ts, frame)
    return best[1] if best is not None else None


def _frame(name: str) -> Frame | None:
    match = _NAME.fullmatch(name)
    if match is None or is_library(match[1]):
        return None
    package = match[1].replace("\\", "/").partition("/")[0].removesuffix(".py")  # paths begin where imports do
    if package == "torch" or package in sys.stdlib_module_names:
        return None
    return Frame(match[1], int(match[2]), match[3])
