"""Reads `report.measures` for drawing: what is absent or of another shape is left out and never an error.

Detectors, also those of users, write the measures; figures and names in them come from evidence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from diagnostics.contract.formatting import bytes_text, counted, seconds_text

RANKS_DRAWN = 64
"""Ranks drawn at most, those to blame first; report.json has all."""
POSITIONS_DRAWN = 48
POINTS_DRAWN = 400
ROWS_DRAWN = 420
KINDS_DRAWN = 12
STEPS_DRAWN = 400
NOTES_SHOWN = 8
_LARGEST = 1 << 256
_COPIES = "memory_ms"
_OVERLAP = (
    *("compute_ms", "communication_ms", "overlapped_ms", "exposed_ms", _COPIES, "idle_ms", "wall_ms"),
    "overlap_percent",
)
"""Compute, exposed, copies and idle add up to the wall time."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective of one rank in the timeline."""

    op: str
    signature: str
    state: str
    where: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The last collectives of a group, per rank, around the divergence."""

    group: str
    positions: tuple[int, ...]
    rows: tuple[tuple[int, tuple[Call | None, ...]], ...]
    hidden: int
    """Ranks that are not drawn."""


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
    """Kinds at the peak, the largest first, bytes."""
    place: str
    """Where the peak is: `step 3, backward, at train.py:88 in loss_of`; empty when nothing was recorded of it."""
    steps: tuple[tuple[float, int], ...]
    """(time, step) where steps begin."""
    capacity_bytes: float | None
    failed: tuple[float, float] | None
    """(time, bytes) of a request that could not be met."""
    notes: tuple[str, ...]

    def time_text(self, time: float) -> str:
        """Return `18.3 ms`, or `event 12`."""
        return seconds_text(time) if self.in_seconds else f"event {time:,.0f}"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one rank."""

    rank: int
    peak_bytes: float
    curve: tuple[tuple[float, float], ...]
    """(seconds, bytes)"""
    categories: tuple[tuple[str, float], ...]
    """At the peak, the largest first, bytes."""
    stack: MemoryStack | None = None
    """What it consisted of over time."""
    kind_of: Mapping[str, str] = field(default_factory=dict)
    """Category -> what it is drawn as over time."""

    @property
    def at_peak(self) -> tuple[tuple[str, float], ...]:
        """The categories; without them what the peak of `stack` consists of."""
        return self.categories or (self.stack.at_peak if self.stack is not None else ())


@dataclass(frozen=True, slots=True)
class RankOverlap:
    """Time of one rank, ms; by name as in report.json."""

    rank: int
    values: Mapping[str, float]


def timeline(measures: Mapping[str, Any], blamed: Sequence[int] = (), around: int | None = None) -> Timeline | None:
    """Return `measures.hang.timeline`, cut to what can be drawn."""
    value = _mapping(_mapping(measures.get("hang")).get("timeline"))
    positions = sorted({position for position in _items(value.get("positions")) if isinstance(position, int)})
    ranks = _by_rank(value.get("ranks"))
    if not positions or not ranks:
        return None
    if len(positions) > POSITIONS_DRAWN:
        middle = positions.index(around) if around in positions else len(positions)
        start = max(0, min(middle - POSITIONS_DRAWN // 2, len(positions) - POSITIONS_DRAWN))
        positions = positions[start : start + POSITIONS_DRAWN]
    drawn = _chosen(list(ranks), blamed)
    rows = tuple((rank, _calls(ranks[rank], positions)) for rank in drawn)
    return Timeline(str(value.get("group", "")), tuple(positions), rows, len(ranks) - len(drawn))


def memory(measures: Mapping[str, Any], blamed: Sequence[int] = ()) -> list[RankMemory]:
    """Return `measures.memory.ranks`, cut to what can be drawn, without ranks of which nothing was recorded."""
    record = _mapping(measures.get("memory"))
    ranks = _by_rank(record.get("ranks"))
    kind_of = {str(name): str(kind) for name, kind in _mapping(record.get("kind_of")).items()}
    stacked = [rank for rank, value in ranks.items() if isinstance(value, dict) and "over_time" in value]
    drawn = _chosen(list(ranks), [*blamed, *(rank for rank in stacked if rank not in blamed)])
    return [one for rank in drawn if (one := _memory(rank, _mapping(ranks[rank]), kind_of)).peak_bytes > 0]


def memory_rows(ranks: Sequence[RankMemory]) -> list[tuple[str, ...]]:
    """Return heading and a row for each rank, as text."""
    rows = [
        (
            str(one.rank),
            bytes_text(one.peak_bytes),
            (one.stack.place if one.stack is not None else "") or "-",
            ", ".join(f"{name} {bytes_text(size)}{share_text(size, one.peak_bytes)}" for name, size in one.at_peak[:8]),
        )
        for one in ranks
    ]
    return [("rank", "peak", "where", "at the peak"), *rows]


def plan_lines(measures: Mapping[str, Any], *, everything: bool = True) -> list[str]:
    """Return how the peak differs from what was planned; with `everything` also why it cannot be compared."""
    plan = _mapping(_mapping(measures.get("memory")).get("plan"))
    texts = [plan.get(name) for name in (("text", "missing") if everything else ("text",))]
    return [text for text in texts if isinstance(text, str)]


def overlap(measures: Mapping[str, Any], blamed: Sequence[int] = ()) -> list[RankOverlap]:
    """Return `measures.overlap.ranks`, cut to what can be drawn."""
    ranks = _by_rank(_mapping(measures.get("overlap")).get("ranks"))
    result = []
    for rank in _chosen(list(ranks), blamed):
        record = _mapping(ranks[rank])
        values = {name: figure for name in _OVERLAP if (figure := _number(record.get(name))) is not None}
        if values:
            result.append(RankOverlap(rank, values))
    return result


def overlap_rows(ranks: Sequence[RankOverlap]) -> list[tuple[str, ...]]:
    """Return heading and a row for each rank, as text; copies only where there are any."""
    names = [name for name in _OVERLAP if name != _COPIES or any(one.values.get(name) for one in ranks)]
    rows = [
        (str(one.rank), *(f"{one.values[name]:.2f}" if name in one.values else "-" for name in names)) for one in ranks
    ]
    heading = (name.replace(_COPIES, "copies_ms").replace("_", " ").replace("percent", "%") for name in names)
    return [("rank", *heading), *rows]


def overlap_window(measures: Mapping[str, Any]) -> str:
    """Return what the figures of overlap are of: `whole file, 6 steps of 76.9 ms`; empty where that is not known."""
    value = _mapping(measures.get("overlap"))
    steps, step_ms, window = _number(value.get("steps")), _number(value.get("step_ms")), value.get("window")
    if not isinstance(window, str):
        return ""
    marked = value.get("steps_marked") and steps and step_ms
    return f"{window}, {counted(int(steps), 'step')} of {step_ms:.1f} ms" if marked and steps else window


def share_text(part_bytes: float, whole_bytes: float) -> str:
    """Return ` (22 %)`; empty without a whole."""
    return f" ({min(part_bytes / whole_bytes, 1.0):.0%})".replace("%", " %") if whole_bytes > 0 else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST < value < _LARGEST:
        return None
    return float(value) if isfinite(value) else None


def _numbers(value: Any, width: int) -> tuple[float, ...] | None:
    """Return a row of so many finite numbers; None for anything else."""
    row = tuple(figure for item in _items(value) if (figure := _number(item)) is not None)
    return row if len(row) == len(_items(value)) == width else None


def _sizes(value: Any) -> tuple[tuple[str, float], ...]:
    """Return names and bytes, the largest first, without what is empty."""
    sizes = [(str(name), size) for name, item in _mapping(value).items() if (size := _number(item))]
    return tuple(sorted(sizes, key=lambda pair: (-pair[1], pair[0])))


def _calls(value: Any, positions: Sequence[int]) -> tuple[Call | None, ...]:
    calls: dict[int, Call] = {}
    for record in map(_mapping, _items(value)):
        position, where = record.get("position"), record.get("where")
        if isinstance(where, dict):
            where = f"{where.get('file', '')}:{where.get('line', '')}"
        if isinstance(position, int):
            texts = (record.get("op"), record.get("signature"), record.get("state"), where)
            calls[position] = Call(*("" if text is None else str(text) for text in texts))
    return tuple(calls.get(position) for position in positions)


def _memory(rank: int, record: Mapping[str, Any], kind_of: Mapping[str, str]) -> RankMemory:
    points = [point for item in _items(record.get("curve")) if (point := _numbers(item, 2)) is not None]
    categories = _sizes(record.get("categories"))
    peak = _number(record.get("peak_bytes"))
    if peak is None:
        peak = max((point[1] for point in points), default=sum(size for _, size in categories))
    # At most so many points, each the highest of its stretch, so that peaks stay.
    step = -(-len(points) // POINTS_DRAWN) or 1
    highest = (max(points[n : n + step], key=lambda point: point[1]) for n in range(0, len(points), step))
    curve = tuple((time_s, size) for time_s, size in highest)
    return RankMemory(rank, peak, curve, categories, _stack(record.get("over_time")), kind_of)


def _stack(value: Any) -> MemoryStack | None:
    """Return `over_time` of a rank; None where there is nothing that can be drawn."""
    record = _mapping(value)
    kinds = tuple(str(kind) for kind in _items(record.get("kinds")))[:KINDS_DRAWN]
    rows = tuple(_rows(record.get("rows"), len(kinds)))
    peak, failed = _mapping(record.get("peak")), _mapping(record.get("failed"))
    time, peak_bytes = _number(peak.get("time")), _number(peak.get("bytes"))
    if not kinds or len(rows) < 2 or time is None or not peak_bytes or peak_bytes <= 0:
        return None
    failed_at, size = _number(failed.get("time")), _number(failed.get("bytes"))
    steps = (pair for item in _items(record.get("steps"))[:STEPS_DRAWN] if (pair := _numbers(item, 2)) is not None)
    return MemoryStack(
        of=str(record.get("of", "")),
        source=str(record.get("file", "")),
        in_seconds=record.get("unit") != "event",
        kinds=kinds,
        unused=frozenset(kinds) - {str(name) for name in _mapping(peak.get("kinds"))},
        rows=rows,
        peak_time=min(max(time, rows[0][0]), rows[-1][0]),
        peak_bytes=peak_bytes,
        at_peak=_sizes(peak.get("kinds")),
        place=_place(peak),
        steps=tuple((at, int(step)) for at, step in steps),
        capacity_bytes=_number(record.get("capacity_bytes")),
        failed=None if failed_at is None or size is None else (failed_at, size),
        notes=tuple(_notes(record)),
    )


def _rows(value: Any, width: int) -> Iterator[tuple[float, tuple[float, ...]]]:
    last = float("-inf")
    for row in _items(value)[:ROWS_DRAWN]:
        numbers = _numbers(row, width + 1)
        if numbers is not None and numbers[0] >= last:
            last = numbers[0]
            yield last, tuple(max(0.0, size) for size in numbers[1:])


def _place(peak: Mapping[str, Any]) -> str:
    step, region, where = _number(peak.get("step")), peak.get("region"), _mapping(peak.get("where"))
    parts = [] if step is None else [f"step {step:.0f}"]
    parts += [region] if isinstance(region, str) and region else []
    if where:
        parts.append(f"at {where.get('file', '')}:{where.get('line', '')} in {where.get('function', '')}")
    return ", ".join(parts)


def _notes(record: Mapping[str, Any]) -> Iterator[str]:
    yield from (str(note) for note in _items(record.get("notes"))[:NOTES_SHOWN])
    computed = [str(kind) for kind in _items(record.get("computed"))[:KINDS_DRAWN]]
    if computed:
        yield f"{' and '.join(computed)} are computed from the size of the model, not measured"
    elsewhere = _number(record.get("peak_elsewhere_bytes"))
    if elsewhere:
        yield f"the highest peak of the whole run, {bytes_text(elsewhere)}, is outside of what is drawn"


def _chosen(ranks: list[int], blamed: Sequence[int]) -> list[int]:
    """Return the ranks to draw, ascending; those to blame are among them however many there are."""
    first = [rank for rank in blamed if rank in set(ranks)][:RANKS_DRAWN]
    others = [rank for rank in sorted(ranks) if rank not in set(first)]
    return sorted(first + others[: RANKS_DRAWN - len(first)])


def _by_rank(value: Any) -> dict[int, Any]:
    """Return the values by rank: JSON has made texts of the keys."""
    return {
        int(key): item
        for key, item in _mapping(value).items()
        if isinstance(key, int) or (isinstance(key, str) and key.isdecimal() and len(key) < 10)
    }
