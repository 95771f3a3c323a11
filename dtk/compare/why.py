"""Who is faster, by how much, and why: sentences from figures, declared collectives and the diagnosis.

Says nothing that is not measured or declared; what noise explains is said to be noise.
"""

from collections.abc import Mapping, Sequence

from diagnostics.analysis.statistics import Estimate
from diagnostics.contract.formatting import bytes_text, counted, seconds_text
from dtk.compare.figures import batch_text, firsts
from dtk.compare.formatting import bounds_text, joined, percent_text, times_text
from dtk.compare.model import Cell, Figure, RunRecord, Traffic, Variant

_EQUAL = 0.02
"""Ratios nearer to 1 are not worth a sentence, whatever their interval."""
_CAUSES = 2
_SMALL_BYTES = 1024

Values = Mapping[str, Mapping[str, Cell]]


def verdicts(variants: Sequence[Variant], figures: Sequence[Figure]) -> list[str]:
    """One sentence per variant beside the first of its batch."""
    cells = {figure.key: {cell.variant: cell for cell in figure.cells} for figure in figures}
    references = firsts(variants)
    told = []
    for variant in variants:
        first = references[batch_text(variant.any)]
        ratio = cells["step_time_s"][variant.label].ratio if "step_time_s" in cells else None
        if first is variant or ratio is None:
            continue
        beside = [one for one in variants if batch_text(one.any) == batch_text(variant.any)]
        alike = _overlap(*(cells["step_time_s"][one.label].spread for one in (variant, first)))
        reasons = _reasons(variant, first, beside, cells, ratio, alike)
        told.append(f"{variant.label} {_speed(ratio, first, alike)}" + (f": {'; '.join(reasons)}" if reasons else ""))
    return told


def _overlap(one: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    """Whether the steps of two single runs lie within each other's: then their medians say little."""
    return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]


def _speed(ratio: Estimate, first: Variant, alike: bool) -> str:
    """`is 1.31x slower than ddp (1.28 to 1.35)`"""
    if ratio.low is None and alike:
        return f"cannot be told from {first.label}: step time {times_text(ratio.median)}, but their steps overlap"
    if _lost_in_noise(ratio, alike):
        return (
            f"cannot be told from {first.label}: step time {times_text(ratio.median)}{bounds_text(ratio)}, within noise"
        )
    if abs(ratio.median - 1) < _EQUAL:
        return f"is as fast as {first.label}: step time {times_text(ratio.median)}{bounds_text(ratio)}"
    slower = ratio.median > 1
    shown = ratio if slower else ratio.falling(lambda value: 1 / value)
    noise = bounds_text(shown) or " (too few repeats to tell it from noise)"
    return f"is {times_text(shown.median)} {'slower' if slower else 'faster'} than {first.label}{noise}"


def _reasons(
    variant: Variant, first: Variant, beside: Sequence[Variant], cells: Values, ratio: Estimate, alike: bool
) -> list[str]:
    run, other = variant.any, first.any
    parts = [_collectives(run, other), _exposed(variant, first, cells)]
    if not _lost_in_noise(ratio, alike):
        parts.append(_time(run, other))
        parts.append(_avoids(variant, beside, cells) if ratio.median > 1 + _EQUAL else "")
    parts.append(_memory(variant, first, cells))
    parts += [f"diagnosis: {cause}" for cause in run.causes[:_CAUSES]]
    return [part for part in parts if part]


def _lost_in_noise(ratio: Estimate, alike: bool) -> bool:
    return alike if ratio.low is None else ratio.holds(1.0)


def _collectives(run: RunRecord, other: RunRecord) -> str:
    """Describe how the collectives that the run issues in a step differ from those of the other run."""
    ours, beside = _large(run), _large(other)
    if not (run.planned and other.planned and (ours or beside)):
        return ""
    if _kinds(ours) == _kinds(beside):
        return "the same collectives"
    more = [_collective(one) for one in ours if _kind(one) not in _kinds(beside)]
    less = [_collective(one) for one in beside if _kind(one) not in _kinds(ours)]
    if not less:
        return f"{joined(more)} more in a step"
    return f"{joined(more)} instead of {joined(less)} a step" if more else f"it does without {joined(less)} a step"


def _large(run: RunRecord) -> list[Traffic]:
    """Without those of a few bytes (a norm, an agreement), which every strategy has."""
    return [one for one in run.traffic if one.size_bytes >= _SMALL_BYTES]


def _kinds(traffic: Sequence[Traffic]) -> set[tuple[str, int, int]]:
    return {_kind(one) for one in traffic}


def _kind(one: Traffic) -> tuple[str, int, int]:
    return one.op, one.count, one.size_bytes


def _collective(one: Traffic) -> str:
    """`24 all_gathers of about 28 MiB`: what one of them has differs from unit to unit."""
    size = bytes_text(one.size_bytes / max(one.count, 1))
    return f"{counted(one.count, one.op)} of {'about ' if one.count > 1 else ''}{size}"


def _exposed(variant: Variant, first: Variant, cells: Values) -> str:
    """`61 % of its communication is exposed, 12 ms a step (ddp: 3 ms)`"""
    if "exposed_s" not in cells:
        return ""
    mine, theirs = (cells["exposed_s"][one.label].estimate for one in (variant, first))
    found = [run.breakdown for run in variant.compared if run.breakdown is not None]
    if mine is None or not found:
        return ""
    communication = sum(one.communication_ms for one in found)
    if communication <= 0:
        return "it communicates nothing that the profiler saw"
    share = sum(one.exposed_ms for one in found) / communication
    beside = "" if theirs is None else f" ({first.label}: {seconds_text(theirs.median)})"
    waits = [one.waiting_ms for one in found if one.waiting_ms is not None]
    waiting = sum(waits) / len(waits) / 1e3 if waits else 0.0
    late = f", {seconds_text(waiting)} of it waiting for late ranks" if waiting > 0.25 * mine.median > 0 else ""
    return f"{percent_text(share)} of its communication is exposed, {seconds_text(mine.median)} a step{beside}{late}"


def _time(run: RunRecord, other: RunRecord) -> str:
    """Where the rest of the difference lies, if it is not communication."""
    mine, theirs = run.breakdown, other.breakdown
    if mine is None or theirs is None:
        return ""
    apart = {
        "compute": mine.compute_ms - theirs.compute_ms,
        "copies": mine.memory_ms - theirs.memory_ms,
        "idle time": mine.idle_ms - theirs.idle_ms,
    }
    name = max(apart, key=lambda key: abs(apart[key]))
    whole = abs(mine.wall_ms - theirs.wall_ms)
    if abs(apart[name]) < max(0.25 * whole, 0.02 * theirs.wall_ms):
        return ""
    more = "more" if apart[name] > 0 else "less"
    return f"{seconds_text(abs(apart[name]) / 1e3)} {more} {name} in a step"


def _avoids(variant: Variant, beside: Sequence[Variant], cells: Values) -> str:
    """Describe the faster variant that sends fewer bytes and needs the least memory, and the collectives it avoids."""
    speeds, sent = cells.get("step_time_s", {}), cells.get("communicated_bytes", {})
    memory = cells.get("peak_memory_bytes", {})

    def known(of: Mapping[str, Cell], one: Variant) -> float | None:
        cell = of.get(one.label)
        return None if cell is None or cell.estimate is None else cell.estimate.median

    mine_s, mine_bytes = known(speeds, variant), known(sent, variant)
    if mine_s is None or mine_bytes is None or not variant.any.planned:
        return ""
    better = []
    for one in beside:
        time_s, size, peak = known(speeds, one), known(sent, one), known(memory, one)
        if one is not variant and one.any.planned and time_s is not None and size is not None and peak is not None:
            fewer = {t.op for t in _large(variant.any)} - {t.op for t in _large(one.any)}
            if time_s < mine_s * (1 - _EQUAL) and size < mine_bytes and fewer:
                better.append((peak, one.label, joined([f"{op}s" for op in sorted(fewer)])))
    if not better:
        return ""
    peak, label, ops = min(better)
    return f"{label} needs {bytes_text(peak)} and avoids the {ops}"


def _memory(variant: Variant, first: Variant, cells: Values) -> str:
    """Describe a difference in peak memory, such as `peak memory 6.1 GiB instead of 9.8 GiB`."""
    found = cells.get("peak_memory_bytes", {})
    mine, theirs = (found[one.label].estimate if one.label in found else None for one in (variant, first))
    if mine is None or theirs is None or abs(mine.median / theirs.median - 1) < _EQUAL:
        return ""
    return f"peak memory {bytes_text(mine.median)} instead of {bytes_text(theirs.median)}"
