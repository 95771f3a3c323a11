"""Profiler traces (Kineto Chrome JSON), recognised by content."""

import re

from diagnostics.evidence.model import rank_in_name
from diagnostics.evidence.reader import Handle, Reader, opens
from diagnostics.evidence.trace.model import Trace
from diagnostics.evidence.trace.read import read

_KEYS = (b'"traceEvents"', b'"deviceProperties"', b'"distributedInfo"', b'"baseTimeNanoseconds"', b'"displayTimeUnit"')
_WORLD_SIZE = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]{0,2000}?"world_size"\s*:\s*(\d{1,8})')


class TraceFile(Handle, frozen=True):
    """A trace on disk."""

    kind = "trace"

    def load(self) -> Trace:
        """Read the trace; if it is damaged, keep the events before the damage and report it in `problems`."""
        return read(self.path, self.file, self.rank, self.limits)


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is a Chrome trace."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] == b"[":
        return b'"ph"' in head and (b'"ts"' in head or b'"pid"' in head)
    if start[:1] != b"{":
        return False
    return _KEYS[0] in head or sum(key in head for key in _KEYS) + (b'"schemaVersion"' in head) >= 2


READER = Reader(
    kind=TraceFile.kind,
    title="profiler traces",
    recognise=recognise,
    # The rank is only taken from a name with that word: the last number in a trace's name is a time.
    open=opens(TraceFile, lambda path: rank_in_name(path) if "rank" in path.name.lower() else None),
    suffixes=(".json", ".gz"),
    per_rank="trace",
    of_rank=True,
    world_size=lambda head: int(match[1]) if (match := _WORLD_SIZE.search(head)) else None,
)
