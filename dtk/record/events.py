"""events/rank_XXXXX.jsonl: what happened when on this rank; at level full also every region as a span."""

import time
from typing import Any

from dtk.parallel.regions import Region
from dtk.record.jsonl import JsonLines


def event_record(name: str, rank: int, attempt: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the line of an event at this moment.

    Lifecycle: start, first_step, evaluation, checkpoint_begin, checkpoint_end, failure, end; of the figures:
    non_finite, replicas_equal, replica_divergence (record.numerics).
    """
    return {"kind": "event", "name": name, "time_s": time.time(), "rank": rank, "attempt": attempt, **fields}


class Spans:
    """Observer that keeps the regions of a step and hands them to the writer when the next one begins."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._step: int | None = None
        self._open: dict[int, tuple[float, float]] = {}
        self._closed: list[dict[str, Any]] = []

    def begin_step(self, step: int | None) -> None:
        """Write what the last step left; None = the run ends."""
        records, self._closed = self._closed, []
        if records:
            self._lines.append(*records)
        self._step = step

    def enter(self, region: Region) -> None:
        """Note the time at which the span begins."""
        self._open[id(region)] = time.time(), time.perf_counter()  # The first may be set while the span lasts.

    def exit(self, region: Region) -> None:
        """Close the span and keep it."""
        began = self._open.pop(id(region), None)
        if began is not None:
            record = {"kind": "span", "name": region.name, "step": self._step, "time_s": began[0]}
            record |= {"duration_ms": (time.perf_counter() - began[1]) * 1e3, **region.place}
            if region.op is not None:
                record |= {"op": region.op, "size_bytes": region.size_bytes, "group": region.group}
            self._closed.append(record)
