"""NCCL Inspector (a profiler plugin of NCCL): its measurements of each collective, JSON lines of one process.

Its numbers of calls match across ranks, so skew can be measured without traces or synchronised clocks. Up to NCCL 2.28
each line has its own header; later versions write a line `dump_stats` whose header applies to all lines after it.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from diagnostics.evidence.limits import lines_of
from diagnostics.evidence.model import integer
from diagnostics.evidence.reader import Handle, Reader, opens
from diagnostics.runs.records import as_mapping, number, objects

MAX_CALLS = 4_000_000
"""Maximum number of calls kept over all processes."""
_KEYS = (b'"inspector_output_format_version"', b'"coll_perf"', b'"coll_sn"')


class Communicator(Struct):
    """One process's calls in one communicator."""

    id: str
    """Identifier that is the same on all ranks of the communicator."""
    rank: int
    """Rank within the communicator."""
    size: int
    calls: dict[tuple[str, int], float] = field(default_factory=dict)
    """(function, number of the call of that function) -> duration on this rank in seconds."""
    first_s: float = float("inf")
    """Times at which the first and the last call were written."""
    last_s: float = 0.0


class InspectorFile(Handle, frozen=True):
    """The file of one process, whose name contains the host and the process id."""

    kind = "inspector"

    def load(self, most: int = MAX_CALLS) -> list[Communicator]:
        """Return the communicators, largest first, with at most `most` calls."""
        largest = _communicators(objects(lines_of(self.path, self.limits)), most)
        if not largest:
            raise ValueError("no collective of NCCL Inspector in it")
        return sorted(largest.values(), key=lambda record: (-record.size, record.id))


def _communicators(records: Iterable[dict[str, Any]], room: int) -> dict[str, Communicator]:
    by_id: dict[str, Communicator] = {}
    header: dict[str, Any] = {}
    time_s: float | None = None
    for record in records:
        header = as_mapping(record.get("header")) or header
        time_s = number(as_mapping(record.get("metadata")).get("dump_timestamp_us")) or time_s
        call = as_mapping(record.get("coll_perf"))
        size = integer(header.get("n_ranks"), 1)
        rank = integer(header.get("rank"), 0, size or 0)
        position, took_us = integer(call.get("coll_sn"), 0), number(call.get("coll_exec_time_us"))
        if size is None or rank is None or position is None or took_us is None or not 0 <= took_us < 1e15 or not room:
            continue
        own = by_id.setdefault(str(header.get("id"))[:80], Communicator(str(header.get("id"))[:80], rank, size))
        own.calls[str(call.get("coll"))[:40], position] = took_us / 1e6
        room -= 1
        if time_s is not None:
            own.first_s, own.last_s = min(own.first_s, time_s / 1e6), max(own.last_s, time_s / 1e6)
    return by_id


READER = Reader(
    kind=InspectorFile.kind,
    title="NCCL Inspector files",
    recognise=lambda head: head.lstrip()[:1] == b"{" and (_KEYS[0] in head or all(key in head for key in _KEYS[1:])),
    open=opens(InspectorFile, lambda path: None),
    groups=None,
)
