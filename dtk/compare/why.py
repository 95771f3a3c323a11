"""Who is faster, by how much, and why: sentences from figures, declared collectives and the diagnosis.

Says nothing that is not measured or declared; what noise explains is said to be noise.
"""

from collections.abc import Mapping, Sequence

from diagnostics.analysis.statistics import Estimate
from diagnostics.contract.formatting import bytes_text, counted, seconds_text
from dtk.compare.figures import baselines, batch_text
from dtk.compare.formatting import bounds_text, joined, percent_text, times_text
from dtk.compare.model import Cell, Figure, RunRecord, Variant

_EQUAL = 0.02
"""Ratios nearer to 1 are not worth a sentence, whatever their interval."""
_CAUSES = 2
_SMALL_BYTES = 1024

Values = Mapping[str, Mapping[str, Cell]]


def verdicts(variants: Sequence[Variant], figures: Sequence[Figure]) -> list[str]:
    """One sentence per variant beside the first of its batch."""
    cells = {figure.key: {cell.variant: cell for cell in figure.cells} for figure in figures}
    references = baselines(variants)
    sentences = []
    for variant in variants:
        first = references[batch_text(variant.any)]
        ratio = cells["step_time_s"][variant.label].ratio if "step_time_s" in cells else None
        if first is variant or ratio is None:
            continue
        same_batch = [other for other in variants if batch_text(other.any) == batch_text(variant.any)]
        mine, theirs = (cells["step_time_s"][beside.label].spread for beside in (variant, first))
        # Where the steps of two single runs lie within each other's, their medians say little.
        overlap = mine is not None and theirs is not None and mine[0] <= theirs[1] and theirs[0] <= mine[1]
        reasons = _reasons(variant, first, same_batch, cells, ratio, overlap)
        sentence = f"{variant.label} {_speed(ratio, first, overlap)}"
        sentences.append(sentence + (f": {'; '.join(reasons)}" if reasons else ""))
    return sentences


def _speed(ratio: Estimate, first: Variant, alike: bool) -> str:
    """`is 1.31x slower than ddp (1.28 to 1.35)`"""
    shown = f"step time {times_text(ratio.median)}"
    if ratio.low is None and alike:
        return f"cannot be told from {first.label}: {shown}, but their steps overlap"
    if _lost_in_noise(ratio, alike):
        return f"cannot be told from {first.label}: {shown}{bounds_text(ratio)}, within noise"
    if abs(ratio.median - 1) < _EQUAL:
        return f"is as fast as {first.label}: {shown}{bounds_text(ratio)}"
    slower = ratio.median > 1
    factor = ratio if slower else ratio.falling(lambda value: 1 / value)
    noise = bounds_text(factor) or " (too few repeats to tell it from noise)"
    return f"is {times_text(factor.median)} {'slower' if slower else 'faster'} than {first.label}{noise}"


def _reasons(
    variant: Variant, first: Variant, beside: Sequence[Variant], cells: Values, ratio: Estimate, alike: bool
) -> list[str]:
    run, other = variant.any, first.any
    parts = [_collectives(run, other), _exposed(variant, first, cells)]
    if not _lost_in_noise(ratio, alike):
        parts.append(_time(run, other))
        parts.append(_avoids(variant, beside, cells) if ratio.median > 1 + _EQUAL else "")
    peaks = [cells.get("peak_memory_bytes", {}).get(beside.label) for beside in (variant, first)]
    mine, theirs = (None if cell is None or cell.estimate is None else cell.estimate.median for cell in peaks)
    if mine is not None and theirs is not None and abs(mine / theirs - 1) >= _EQUAL:
        parts.append(f"peak memory {bytes_text(mine)} instead of {bytes_text(theirs)}")
    parts += [f"diagnosis: {cause}" for cause in run.causes[:_CAUSES]]
    return [part for part in parts if part]


def _lost_in_noise(ratio: Estimate, alike: bool) -> bool:
    return alike if ratio.low is None else ratio.holds(1.0)


def _collectives(run: RunRecord, other: RunRecord) -> str:
    """Describe how the collectives that the run issues in a step differ from those of the other run."""
    ours, theirs = _large(run), _large(other)
    if not (run.planned and other.planned and (ours or theirs)):
        return ""
    more = [text for kind, text in ours.items() if kind not in theirs]
    less = [text for kind, text in theirs.items() if kind not in ours]
    if not more and not less:
        return "the same collectives"
    if not less:
        return f"{joined(more)} more in a step"
    return f"{joined(more)} instead of {joined(less)} a step" if more else f"without {joined(less)} a step"


def _large(run: RunRecord) -> dict[tuple[str, int, int], str]:
    """Return (operation, count, bytes) -> `24 all_gathers of about 28 MiB`: sizes differ from unit to unit.

    Without collectives of a few bytes (a norm, an agreement), which every strategy has.
    """
    found = {}
    for kind in run.traffic:
        if kind.size_bytes >= _SMALL_BYTES:
            size = bytes_text(kind.size_bytes / max(kind.count, 1))
            text = f"{counted(kind.count, kind.op)} of {'about ' if kind.count > 1 else ''}{size}"
            found[kind.op, kind.count, kind.size_bytes] = text
    return found


def _exposed(variant: Variant, first: Variant, cells: Values) -> str:
    """`61 % of its communication is exposed, 12 ms a step (ddp: 3 ms)`"""
    if "exposed_s" not in cells:
        return ""
    mine, theirs = (cells["exposed_s"][beside.label].estimate for beside in (variant, first))
    parts = [run.breakdown for run in variant.compared if run.breakdown is not None]
    if mine is None or not parts:
        return ""
    communication = sum(part.communication_ms for part in parts)
    if communication <= 0:
        return "it communicates nothing that the profiler saw"
    share = sum(part.exposed_ms for part in parts) / communication
    beside = "" if theirs is None else f" ({first.label}: {seconds_text(theirs.median)})"
    waits = [part.waiting_ms for part in parts if part.waiting_ms is not None]
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

    def median(key: str, of: Variant) -> float | None:
        cell = cells.get(key, {}).get(of.label)
        return None if cell is None or cell.estimate is None else cell.estimate.median

    mine_s, mine_bytes = median("step_time_s", variant), median("communicated_bytes", variant)
    if mine_s is None or mine_bytes is None or not variant.any.planned:
        return ""
    better = []
    for other in beside:
        time_s, sent, peak = (median(k, other) for k in ("step_time_s", "communicated_bytes", "peak_memory_bytes"))
        if other is not variant and other.any.planned and time_s is not None and sent is not None and peak is not None:
            fewer = {kind[0] for kind in _large(variant.any)} - {kind[0] for kind in _large(other.any)}
            if time_s < mine_s * (1 - _EQUAL) and sent < mine_bytes and fewer:
                better.append((peak, other.label, joined([f"{op}s" for op in sorted(fewer)])))
    if not better:
        return ""
    peak_bytes, label, ops = min(better)
    return f"{label} needs {bytes_text(peak_bytes)} and avoids the {ops}"
