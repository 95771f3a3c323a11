"""Reads `over_time` of a rank in `report.measures.memory`: what is absent or of another shape is left out, never an
error. Figures and names in it come from evidence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diagnostics.contract.formatting import bytes_text, seconds_text
from diagnostics.report.values import items, mapping, number

ROWS_DRAWN = 420
KINDS_DRAWN = 12
STEPS_DRAWN = 400
NOTES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class MemoryStack:
    """What the memory of one rank consisted of over time."""

    of: str
    """What was measured: `tensors`, `the process (resident set)`, ..."""
    source: str
    """The file."""
    in_seconds: bool
    """Otherwise times are numbers of events."""
    kinds: tuple[str, ...]
    """From the bottom to the top."""
    unused: frozenset[str]
    """Of them those in no tensor."""
    rows: tuple[tuple[float, tuple[float, ...]], ...]
    """(time, bytes of each kind), ascending."""
    peak_time: float
    peak_bytes: float
    at_peak: tuple[tuple[str, float], ...]
    """The largest first, those that are there."""
    place: str
    """Where the peak stood: `step 3, backward, at train.py:88 in loss_of`; empty when nothing tells."""
    steps: tuple[tuple[float, int], ...]
    """(time, step) where steps begin."""
    capacity_bytes: float | None
    failed: tuple[float, float] | None
    """(time, bytes) of a request that could not be met."""
    notes: tuple[str, ...]

    def time_text(self, time: float) -> str:
        """`18.3 ms`, or `event 12`."""
        return seconds_text(time) if self.in_seconds else f"event {time:,.0f}"


def read_stack(value: Any) -> MemoryStack | None:
    """None where there is nothing that can be drawn."""
    record = mapping(value)
    kinds = tuple(str(one) for one in items(record.get("kinds")))[:KINDS_DRAWN]
    rows = _rows(record.get("rows"), len(kinds))
    peak = mapping(record.get("peak"))
    time, peak_bytes = number(peak.get("time")), number(peak.get("bytes"))
    if not kinds or len(rows) < 2 or time is None or not peak_bytes or peak_bytes <= 0:
        return None
    parts = [(str(name), size) for name, one in mapping(peak.get("kinds")).items() if (size := number(one))]
    failed = mapping(record.get("failed"))
    failed_at, asked = number(failed.get("time")), number(failed.get("bytes"))
    return MemoryStack(
        of=str(record.get("of", "")),
        source=str(record.get("file", "")),
        in_seconds=record.get("unit") != "event",
        kinds=kinds,
        unused=frozenset(kinds) - {str(name) for name in mapping(peak.get("kinds"))},
        rows=rows,
        peak_time=min(max(time, rows[0][0]), rows[-1][0]),
        peak_bytes=peak_bytes,
        at_peak=tuple(sorted(parts, key=lambda one: (-one[1], one[0]))),
        place=_place(peak),
        steps=_steps(record.get("steps")),
        capacity_bytes=number(record.get("capacity_bytes")),
        failed=None if failed_at is None or asked is None else (failed_at, asked),
        notes=_notes(record),
    )


def share_text(part_bytes: float, whole_bytes: float) -> str:
    """` (22 %)`; empty without a whole."""
    return f" ({min(part_bytes / whole_bytes, 1.0):.0%})".replace("%", " %") if whole_bytes > 0 else ""


def _rows(value: Any, width: int) -> tuple[tuple[float, tuple[float, ...]], ...]:
    found: list[tuple[float, tuple[float, ...]]] = []
    for row in items(value)[:ROWS_DRAWN]:
        numbers = [figure for one in items(row) if (figure := number(one)) is not None]
        if len(numbers) == len(items(row)) == width + 1 and (not found or numbers[0] >= found[-1][0]):
            found.append((numbers[0], tuple(max(0.0, size) for size in numbers[1:])))
    return tuple(found)


def _steps(value: Any) -> tuple[tuple[float, int], ...]:
    found = []
    for pair in map(items, items(value)[:STEPS_DRAWN]):
        time, step = (number(one) for one in pair) if len(pair) == 2 else (None, None)
        if time is not None and step is not None:
            found.append((time, int(step)))
    return tuple(found)


def _place(peak: Mapping[str, Any]) -> str:
    step, region, where = number(peak.get("step")), peak.get("region"), mapping(peak.get("where"))
    parts = [] if step is None else [f"step {step:.0f}"]
    parts += [region] if isinstance(region, str) and region else []
    if where:
        parts.append(f"at {where.get('file', '')}:{where.get('line', '')} in {where.get('function', '')}")
    return ", ".join(parts)


def _notes(record: Mapping[str, Any]) -> tuple[str, ...]:
    told = [str(one) for one in items(record.get("notes"))[:NOTES_SHOWN]]
    computed = [str(one) for one in items(record.get("computed"))[:KINDS_DRAWN]]
    if computed:
        told.append(f"{' and '.join(computed)} are computed from the size of the model, not measured")
    elsewhere = number(record.get("peak_elsewhere_bytes"))
    if elsewhere:
        told.append(f"the highest of the whole run, {bytes_text(elsewhere)}, stood outside of what is drawn")
    return tuple(told)
