"""Which variant is faster, by how much, and why, from measurements and declarations. Noise is reported as such."""

from collections.abc import Sequence

from diagnostics.contract.formatting import bytes_text, counted, joined, seconds_text
from dtk.compare.figures import baselines, batch_text
from dtk.compare.formatting import bounds_text, times_text
from dtk.compare.model import Figure, RunRecord, Variant, medians
from dtk.compare.statistics import Estimate

_EQUAL = 0.02  # Ratios nearer to 1 are not worth a sentence, whatever their interval.
_CAUSES = 2  # Chosen: the first causes have most of the cost; the diagnosis lists all.
_PART = 0.25  # Chosen: share of a difference, or of the exposed time, from which a part is named: the largest few.
_SMALL_BYTES = 1024  # Below: exchanges of the control group, which every strategy has.


def verdicts(variants: Sequence[Variant], figures: Sequence[Figure]) -> list[str]:
    """Return one sentence per variant except the first of its batch."""
    steps = {cell.variant: cell for figure in figures if figure.key == "step_time_s" for cell in figure.cells}
    references = baselines(variants)
    sentences = []
    for variant in variants:
        first = references[batch_text(variant.any)]
        ratio = steps[variant.label].ratio if steps else None
        if first is variant or ratio is None:
            continue
        same_batch = [beside for beside in variants if batch_text(beside.any) == batch_text(variant.any)]
        own, base = steps[variant.label].spread, steps[first.label].spread
        # Where the steps of two single runs lie within each other's, their medians say little.
        overlap = own is not None and base is not None and own[0] <= base[1] and base[0] <= own[1]
        lost_in_noise = overlap if ratio.low is None else ratio.holds(1.0)
        reasons = _reasons(variant, first, same_batch, figures, None if lost_in_noise else ratio)
        sentence = f"{variant.label} {_speed(ratio, first, overlap)}"
        sentences.append(sentence + (f": {'; '.join(reasons)}" if reasons else ""))
    return sentences


def _speed(ratio: Estimate, first: Variant, overlap: bool) -> str:
    """`is 1.31x slower than ddp (1.28 to 1.35)`"""
    text = f"step time {times_text(ratio.median)}"
    if ratio.low is None and overlap:
        return f"is indistinguishable from {first.label}: {text}, but their steps overlap"
    if ratio.low is not None and ratio.holds(1.0):
        return f"is indistinguishable from {first.label}: {text}{bounds_text(ratio)}, within noise"
    if abs(ratio.median - 1) < _EQUAL:
        return f"is as fast as {first.label}: {text}{bounds_text(ratio)}"
    slower = ratio.median > 1
    factor = ratio if slower else ratio.falling(lambda value: 1 / value)
    noise = bounds_text(factor) or " (too few repeats to distinguish it from noise)"
    return f"is {times_text(factor.median)} {'slower' if slower else 'faster'} than {first.label}{noise}"


def _reasons(
    variant: Variant, first: Variant, beside: Sequence[Variant], figures: Sequence[Figure], ratio: Estimate | None
) -> list[str]:
    """Return the reasons for a ratio of step times; None means that it is within noise."""
    run, base = variant.any, first.any
    parts = [_collectives(run, base), _exposed(variant, first, figures)]
    if ratio is not None:
        parts.append(_time(run, base))
        parts.append(_avoids(variant, beside, figures) if ratio.median > 1 + _EQUAL else "")
    peaks = medians(figures, "peak_memory_bytes")
    own_peak, first_peak = peaks.get(variant.label), peaks.get(first.label)
    if own_peak is not None and first_peak is not None and abs(own_peak / first_peak - 1) >= _EQUAL:
        parts.append(f"peak memory {bytes_text(own_peak)} instead of {bytes_text(first_peak)}")
    parts += [f"diagnosis: {cause}" for cause in run.causes[:_CAUSES]]
    return [part for part in parts if part]


def _collectives(run: RunRecord, base: RunRecord) -> str:
    own, of_other = _large(run), _large(base)
    if not (run.planned and base.planned and (own or of_other)):
        return ""
    more = [text for kind, text in own.items() if kind not in of_other]
    less = [text for kind, text in of_other.items() if kind not in own]
    if not more and not less:
        return "the same collectives, according to their plans"
    if not less:
        return f"additionally {joined(more)} per step"
    return f"{joined(more)} instead of {joined(less)} per step" if more else f"without {joined(less)} per step"


def _large(run: RunRecord) -> dict[tuple[str, int, int], str]:
    """(operation, count, bytes) -> `24 all_gathers of about 28 MiB`, without a norm or an agreement (few bytes)."""
    texts = {}
    for kind in run.traffic:
        if kind.size_bytes >= _SMALL_BYTES:
            size = bytes_text(kind.size_bytes / max(kind.count, 1))
            text = f"{counted(kind.count, kind.op)} of {'about ' if kind.count > 1 else ''}{size}"
            texts[kind.op, kind.count, kind.size_bytes] = text
    return texts


def _exposed(variant: Variant, first: Variant, figures: Sequence[Figure]) -> str:
    """`61% of its communication is exposed, 12 ms per step (ddp: 3 ms)`"""
    exposed_s = medians(figures, "exposed_s")
    own_s, first_s = exposed_s.get(variant.label), exposed_s.get(first.label)
    parts = [run.breakdown for run in variant.compared if run.breakdown is not None]
    if own_s is None or not parts:
        return ""
    communication = sum(part.communication_ms for part in parts)
    if communication <= 0:
        return "the profiler recorded no communication for it"
    share = sum(part.exposed_ms for part in parts) / communication
    beside = "" if first_s is None else f" ({first.label}: {seconds_text(first_s)})"
    waits = [part.waiting_ms for part in parts if part.waiting_ms is not None]
    waiting = sum(waits) / len(waits) / 1e3 if waits else 0.0
    late = f", {seconds_text(waiting)} of it waiting for late ranks" if waiting > _PART * own_s > 0 else ""
    return f"{share:.0%} of its communication is exposed, {seconds_text(own_s)} per step{beside}{late}"


def _time(run: RunRecord, other: RunRecord) -> str:
    """Return where the rest of the difference is, if it is not communication."""
    own, base = run.breakdown, other.breakdown
    if own is None or base is None:
        return ""
    apart = {
        "compute": own.compute_ms - base.compute_ms,
        "copies": own.memory_ms - base.memory_ms,
        "idle time": own.idle_ms - base.idle_ms,
    }
    name = max(apart, key=lambda key: abs(apart[key]))
    whole = abs(own.wall_ms - base.wall_ms)
    if abs(apart[name]) < max(_PART * whole, _EQUAL * base.wall_ms):
        return ""
    more = "more" if apart[name] > 0 else "less"
    return f"{seconds_text(abs(apart[name]) / 1e3)} {more} {name} per step"


def _avoids(variant: Variant, beside: Sequence[Variant], figures: Sequence[Figure]) -> str:
    """Describe the faster variant that sends fewer bytes and needs the least memory, and the collectives it avoids."""
    keys = ("step_time_s", "communicated_bytes", "peak_memory_bytes")
    times_s, sent, peaks = (medians(figures, key) for key in keys)
    mine = variant.label
    better = []
    for other in beside:
        label, planned = other.label, variant.any.planned and other.any.planned
        if planned and label in peaks and {mine, label} <= times_s.keys() & sent.keys():
            fewer = {kind[0] for kind in _large(variant.any)} - {kind[0] for kind in _large(other.any)}
            if times_s[label] < times_s[mine] * (1 - _EQUAL) and sent[label] < sent[mine] and fewer:
                better.append((peaks[label], label, joined([f"{op}s" for op in sorted(fewer)])))
    if not better:
        return ""
    peak_bytes, label, ops = min(better)
    return f"{label} needs {bytes_text(peak_bytes)} and avoids the {ops}"
