"""Sentences about the figures: which variant is faster, by how much and why, from measurements and declarations; and
notes on excluded runs, disturbances and differences, which never decide. Noise is reported as such.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from diagnostics.contract.formatting import bytes_text, counted, joined, seconds_text
from diagnostics.contract.grouping import grouped
from diagnostics.contract.strategy_traits import strategy_traits
from diagnostics.runs.records import as_mapping
from dtk.compare.figures import baselines, batch_text, profiled
from dtk.compare.group import machine
from dtk.compare.model import Check, Doubt, Figure, RunRecord, Variant, medians
from dtk.compare.statistics import FEWEST, METHOD, Estimate, bounds_text, interval_text, times_text

UNSTEADY, CLOCKS = 0.10, 0.05
"""Spread of repeats over their median, and relative difference of clocks, from which on there is a warning."""
DISTURBED_SHOWN = 3  # Chosen: further ones are only counted.
_EQUAL = 0.02  # Ratios nearer to 1 are not worth a sentence, whatever their interval.
_CAUSES = 2  # Chosen: the first causes have most of the cost; the diagnosis lists all.
_PART = 0.25  # Chosen: share of a difference, or of the exposed time, from which a part is named: the largest few.
_SMALL_BYTES = 1024  # Below: exchanges of the control group, which every strategy has.


def notes(
    variants: Sequence[Variant],
    compared: Sequence[Variant],
    figures: Sequence[Figure],
    checks: Sequence[Check],
    warmup_steps: int,
) -> Iterator[str]:
    """Yield the notes in order of weight."""
    yield from _disturbed(compared)
    yield from _unlike(compared)
    several = sum(len(variant.compared) for variant in compared) > 1
    undecided = [f"{check.title} ({check.detail})" for check in checks if check.status == "unknown"]
    if undecided and several:
        yield f"not checked: {'; '.join(undecided)}"
    every = [(variant, run) for variant in variants for run in variant.runs]
    for variant, run in every:
        if run not in variant.compared:
            why = f": {run.reason}" if run.reason else ""
            state = run.state if run.state not in ("finished", "preempted", "running") else "no measured steps"
            yield f"not compared: {variant.label} ({run.name}), {state}{why}"
        elif run.state != "finished":
            yield f"{variant.label} ({run.name}) is {run.state}: its figures are those of the steps so far"
    for variant, run in every:
        if run.damage:
            yield f"damaged and not used: {variant.label} ({run.name}): {'; '.join(run.damage)}"
    few = [variant.label for variant in compared if len(variant.compared) < FEWEST]
    if few and several:
        yield f"fewer than {FEWEST} repeats of {joined(few)}: too few for an interval (repeats={FEWEST} gives one)"
    yield from _repeats(compared, figures)
    yield f"the first {counted(warmup_steps, 'step')} of every attempt are warm-up and excluded; {METHOD}"
    without = [v.label for v in compared if all(run.breakdown is None for run in v.compared)]
    if without:
        yield f"exposed communication was not recorded for {joined(without)}: record=full records it"
    if any(profiled(run)[1] for variant in compared for run in variant.compared):
        yield "steps that the profiler recorded are excluded if others remain"


def _disturbed(compared: Sequence[Variant]) -> Iterator[str]:
    rows = (
        (variant.label, run.name, each) for variant in compared for run in variant.compared for each in run.disturbances
    )
    by_kind = grouped((each.what, (f"{label} {each.how} ({name})", name)) for label, name, each in rows)
    for what, cases in by_kind.items():
        texts = "; ".join(text for text, _ in cases[:DISTURBED_SHOWN])
        more = f", and {len(cases) - DISTURBED_SHOWN} more" if len(cases) > DISTURBED_SHOWN else ""
        yield Doubt(f"disturbed: {what} in {counted(len({name for _, name in cases}), 'run')}: {texts}{more}")
    clocks = {v.label: r.clocks_mhz for v in compared for r in v.compared if r.clocks_mhz is not None}
    if clocks and max(clocks.values()) > min(clocks.values()) * (1 + CLOCKS):
        texts = ", ".join(f"{label} {mhz:,.0f} MHz" for label, mhz in clocks.items())
        yield Doubt(f"disturbed: the devices did not run at the same clocks: {texts}")


def _unlike(compared: Sequence[Variant]) -> Iterator[str]:
    for part, what in enumerate(("devices", "numbers of nodes", "versions of torch", "versions of the code")):
        by_value = {machine(variant.any)[part]: variant.label for variant in compared}
        if len(by_value) > 1:
            yield f"{what} differ: " + "; ".join(f"{label}: {value or 'unknown'}" for value, label in by_value.items())
    changes = {str(as_mapping(run.manifest.get("git")).get("diff_sha256")) for v in compared for run in v.compared}
    if len(changes) > 1:
        yield "uncommitted or untracked files changed between the runs"
    levels = {str(variant.any.get("record.level")): variant.label for variant in compared}
    if len(levels) > 1:
        texts = ", ".join(f"{label}: record={level}" for level, label in levels.items())
        yield f"recorded at different levels, which cost different times: {texts}"
    sharded = {strategy_traits(v.any.manifest, v.any.config).shards_parameters for v in compared}
    low = {str(v.any.get("precision.compute_dtype")) for v in compared} - {"float32", "None"}
    if len(sharded) > 1 and low:
        yield (
            f"with {joined(sorted(low))} the sharded strategies cast whole units, the others single operations "
            "(autocast): norms and softmax are computed in different types"
        )


def _repeats(compared: Sequence[Variant], figures: Sequence[Figure]) -> Iterator[str]:
    unsteady = [
        f"{cell.variant} {interval_text(step_time, 's')}"
        for figure in figures
        for cell in figure.cells
        if figure.key == "step_time_s"
        and (step_time := cell.estimate) is not None
        and step_time.low is not None
        and step_time.high is not None
        and step_time.high - step_time.low > 2 * UNSTEADY * step_time.median
    ]
    if unsteady:
        yield Doubt(f"unsteady: repeats differ so much that step times have wide intervals: {', '.join(unsteady)}")
    if any(cell.ratio is not None and cell.ratio.count > 1 for figure in figures for cell in figure.cells):
        yield "ratios are medians over pairs of repeats (the n-th of each), not those of the medians"
    repeated = [variant.compared for variant in compared if len(variant.compared) > 1]
    spans = sorted((runs[0].started, runs[-1].started) for runs in repeated)
    if len(spans) > 1 and all(end < begin for (_, end), (begin, _) in pairwise(spans)):
        yield "the repeats of one variant ran after those of another, not in turns: the ratios contain any slow drift"


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
