"""Reads `report.measures` for drawing: what is absent or of another shape is left out, never an error.

Detectors and users' detectors write the measures; figures in them come from evidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diagnostics.contract.formatting import bytes_text, counted
from diagnostics.report.memory_areas import MemoryStack, read_stack, share_text
from diagnostics.report.values import items, mapping, number

RANKS_DRAWN = 64
"""Ranks drawn at most, the blamed ones first; report.json has all."""
POSITIONS_DRAWN = 48
POINTS_DRAWN = 400
_COPIES = "memory_ms"
_OVERLAP = (
    *("compute_ms", "communication_ms", "overlapped_ms", "exposed_ms", _COPIES, "idle_ms", "wall_ms"),
    "overlap_percent",
)
"""Compute, exposed, copies and idle add up to the wall."""


@dataclass(frozen=True, slots=True)
class Cell:
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
    rows: tuple[tuple[int, tuple[Cell | None, ...]], ...]
    hidden: int
    """Ranks that are not drawn."""


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
    """`measures.hang.timeline`, cut to what can be drawn."""
    value = mapping(mapping(measures.get("hang")).get("timeline"))
    positions = sorted({one for one in items(value.get("positions")) if isinstance(one, int)})
    ranks = _by_rank(value.get("ranks"))
    if not positions or not ranks:
        return None
    if len(positions) > POSITIONS_DRAWN:
        middle = positions.index(around) if around in positions else len(positions)
        start = max(0, min(middle - POSITIONS_DRAWN // 2, len(positions) - POSITIONS_DRAWN))
        positions = positions[start : start + POSITIONS_DRAWN]
    drawn = _chosen(list(ranks), blamed)
    rows = tuple((rank, _cells(ranks[rank], positions)) for rank in drawn)
    return Timeline(str(value.get("group", "")), tuple(positions), rows, len(ranks) - len(drawn))


def memory(measures: Mapping[str, Any], blamed: Sequence[int] = ()) -> list[RankMemory]:
    """`measures.memory.ranks`, cut to what can be drawn."""
    memory = mapping(measures.get("memory"))
    ranks = _by_rank(memory.get("ranks"))
    kind_of = {str(name): str(kind) for name, kind in mapping(memory.get("kind_of")).items()}
    stacked = [rank for rank, record in ranks.items() if isinstance(record, dict) and "over_time" in record]
    drawn = _chosen(list(ranks), [*blamed, *(rank for rank in stacked if rank not in blamed)])
    found = [_memory(rank, mapping(ranks[rank]), kind_of) for rank in drawn]
    return [one for one in found if one.peak_bytes > 0]  # nothing was recorded of the others


def plan_lines(measures: Mapping[str, Any], *, everything: bool = True) -> list[str]:
    """How the peak differs from what was planned; with `everything` also why it cannot be compared."""
    plan = mapping(mapping(measures.get("memory")).get("plan"))
    told = [plan.get(name) for name in (("text", "missing") if everything else ("text",))]
    return [text for text in told if isinstance(text, str)]


def overlap(measures: Mapping[str, Any], blamed: Sequence[int] = ()) -> list[RankOverlap]:
    """`measures.overlap.ranks`, cut to what can be drawn."""
    ranks = _by_rank(mapping(measures.get("overlap")).get("ranks"))
    result = []
    for rank in _chosen(list(ranks), blamed):
        record = mapping(ranks[rank])
        values = {name: figure for name in _OVERLAP if (figure := number(record.get(name))) is not None}
        if values:
            result.append(RankOverlap(rank, values))
    return result


def overlap_rows(measures: Mapping[str, Any], blamed: Sequence[int] = ()) -> list[tuple[str, ...]]:
    """Heading and a row per rank, as text; empty without figures. Copies only where there are any."""
    ranks = overlap(measures, blamed)
    names = [name for name in _OVERLAP if name != _COPIES or any(one.values.get(name) for one in ranks)]
    rows = [
        (str(one.rank), *(f"{one.values[name]:.2f}" if name in one.values else "-" for name in names)) for one in ranks
    ]
    heading = (name.replace(_COPIES, "copies_ms").replace("_", " ").replace("percent", "%") for name in names)
    return [("rank", *heading), *rows] if rows else []


def overlap_window(measures: Mapping[str, Any]) -> str:
    """What the figures of overlap are of: `whole file, 6 steps of 76.9 ms`; empty where they do not say."""
    value = mapping(measures.get("overlap"))
    steps, step_ms, window = number(value.get("steps")), number(value.get("step_ms")), value.get("window")
    if not isinstance(window, str):
        return ""
    marked = value.get("steps_marked") and steps and step_ms
    return f"{window}, {counted(int(steps), 'step')} of {step_ms:.1f} ms" if marked and steps else window


def memory_rows(measures: Mapping[str, Any], blamed: Sequence[int] = ()) -> list[tuple[str, ...]]:
    """Heading and a row per rank, as text; empty without figures."""
    rows = [
        (
            str(one.rank),
            bytes_text(one.peak_bytes),
            (one.stack.place if one.stack is not None else "") or "-",
            ", ".join(f"{name} {bytes_text(size)}{share_text(size, one.peak_bytes)}" for name, size in one.at_peak[:8]),
        )
        for one in memory(measures, blamed)
    ]
    return [("rank", "peak", "where", "at the peak"), *rows] if rows else []


def _cells(value: Any, positions: Sequence[int]) -> tuple[Cell | None, ...]:
    found: dict[int, Cell] = {}
    for record in map(mapping, items(value)):
        position = record.get("position")
        if isinstance(position, int):
            texts = (_where(record.get(name)) for name in ("op", "signature", "state", "where"))
            found[position] = Cell(*texts)
    return tuple(found.get(position) for position in positions)


def _where(value: Any) -> str:
    """A text, or a place given as a mapping."""
    if isinstance(value, dict):
        return f"{value.get('file', '')}:{value.get('line', '')}"
    return "" if value is None else str(value)


def _memory(rank: int, record: Mapping[str, Any], kind_of: Mapping[str, str]) -> RankMemory:
    curve = [
        (time_s, size)
        for point in items(record.get("curve"))
        if isinstance(point, list | tuple)
        and len(point) == 2
        and (time_s := number(point[0])) is not None
        and (size := number(point[1])) is not None
    ]
    categories = {str(name): size for name, one in mapping(record.get("categories")).items() if (size := number(one))}
    peak = number(record.get("peak_bytes"))
    if peak is None:
        peak = max((size for _, size in curve), default=sum(categories.values()))
    largest = tuple(sorted(categories.items(), key=lambda one: (-one[1], one[0])))
    return RankMemory(rank, peak, _thinned(curve), largest, read_stack(record.get("over_time")), kind_of)


def _thinned(curve: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most `POINTS_DRAWN` points, each the highest of its stretch, so that peaks stay."""
    if len(curve) <= POINTS_DRAWN:
        return tuple(curve)
    step = -(-len(curve) // POINTS_DRAWN)
    return tuple(max(curve[n : n + step], key=lambda point: point[1]) for n in range(0, len(curve), step))


def _chosen(ranks: list[int], blamed: Sequence[int]) -> list[int]:
    """Ascending; the blamed ones are among them however many there are."""
    first = [rank for rank in blamed if rank in set(ranks)][:RANKS_DRAWN]
    others = [rank for rank in sorted(ranks) if rank not in set(first)]
    return sorted(first + others[: RANKS_DRAWN - len(first)])


def _by_rank(value: Any) -> dict[int, Any]:
    """Keys as integers: JSON has made texts of them."""
    result = {}
    for key, one in mapping(value).items():
        if isinstance(key, int) or (isinstance(key, str) and key.isdecimal() and len(key) < 10):
            result[int(key)] = one
    return result
