"""What a reader must know beside the figures: what was left out, what disturbed them, what else differs.

A note never decides; the parity gate does.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from diagnostics.analysis.statistics import METHOD
from diagnostics.contract.formatting import counted
from diagnostics.contract.strategy_traits import strategy_traits
from dtk.compare.formatting import interval_text, joined
from dtk.compare.group import machine
from dtk.compare.model import Check, Doubt, Figure, Variant, mapping
from dtk.compare.steps import profiled

REPEATS = 3
"""From which on there is an interval."""
UNSTEADY = 0.10
"""Spread of repeats over their median that deserves a warning."""
DISTURBED_SHOWN = 3
CLOCKS = 0.05
"""Difference of clocks that does."""


def notes(
    variants: Sequence[Variant],
    compared: Sequence[Variant],
    figures: Sequence[Figure],
    checks: Sequence[Check],
    warmup_steps: int,
) -> Iterator[str]:
    """In order of weight."""
    yield from _disturbed(compared)
    yield from _unlike(compared)
    missing = [check.title for check in checks if check.status == "unknown"]
    if missing and sum(len(variant.compared) for variant in compared) > 1:
        yield f"not checked, because a run did not record it: {joined(missing)}"
    yield from _lost(variants)
    for variant in variants:
        for run in variant.runs:
            if run.damage:
                yield f"damaged and not used: {variant.label} ({run.name}): {'; '.join(run.damage)}"
    yield from _repeats(compared, figures)
    yield f"the first {counted(warmup_steps, 'step')} of every attempt are warm-up and excluded; {METHOD}"
    yield from _levels(compared)


def _disturbed(compared: Sequence[Variant]) -> Iterator[str]:
    runs = [(variant.label, run) for variant in compared for run in variant.compared]
    found: dict[str, list[tuple[str, str]]] = {}
    for label, run in runs:
        for one in run.disturbances:
            found.setdefault(one.what, []).append((f"{label} {one.how} ({run.name})", run.name))
    for what, cases in found.items():
        shown = "; ".join(text for text, _ in cases[:DISTURBED_SHOWN])
        more = f", and {len(cases) - DISTURBED_SHOWN} more" if len(cases) > DISTURBED_SHOWN else ""
        yield Doubt(f"disturbed: {what} in {counted(len({name for _, name in cases}), 'run')}: {shown}{more}")
    clocks = {v.label: r.clocks_mhz for v in compared for r in v.compared if r.clocks_mhz is not None}
    if clocks and max(clocks.values()) > min(clocks.values()) * (1 + CLOCKS):
        shown = ", ".join(f"{label} {mhz:,.0f} MHz" for label, mhz in clocks.items())
        yield Doubt(f"disturbed: the devices did not run at the same clocks: {shown}")


def _unlike(compared: Sequence[Variant]) -> Iterator[str]:
    for part, what in enumerate(("devices", "numbers of nodes", "versions of torch", "versions of the code")):
        found = {machine(variant.any)[part]: variant.label for variant in compared}
        if len(found) > 1:
            yield f"{what} differ: " + "; ".join(f"{label}: {value or 'unknown'}" for value, label in found.items())
    changed = {
        str(mapping(run.manifest.get("git")).get("diff_sha256")) for variant in compared for run in variant.compared
    }
    if len(changed) > 1:
        yield "files that differ from the commit, or that git does not know, changed between the runs"
    levels = {str(variant.any.get("record.level")): variant.label for variant in compared}
    if len(levels) > 1:
        shown = ", ".join(f"{label}: record={level}" for level, label in levels.items())
        yield f"recorded at different levels, which cost different times: {shown}"
    sharded = {strategy_traits(v.any.manifest, v.any.config).shards_parameters for v in compared}
    low = {str(v.any.get("precision.compute_dtype")) for v in compared} - {"float32", "None"}
    if len(sharded) > 1 and low:
        yield (
            f"with {joined(sorted(low))} the sharded strategies cast whole units, the others single operations "
            "(autocast): norms and softmax are computed in other types"
        )


def _lost(variants: Sequence[Variant]) -> Iterator[str]:
    for variant in variants:
        for run in variant.runs:
            if run not in variant.compared:
                why = f": {run.reason}" if run.reason else ""
                state = run.state if run.state not in ("finished", "preempted", "running") else "no measured steps"
                yield f"not compared: {variant.label} ({run.name}), {state}{why}"
            elif run.state != "finished":
                yield f"{variant.label} ({run.name}) is {run.state}: its figures are those of the steps so far"


def _repeats(compared: Sequence[Variant], figures: Sequence[Figure]) -> Iterator[str]:
    few = [variant.label for variant in compared if len(variant.compared) < REPEATS]
    if few and sum(len(variant.compared) for variant in compared) > 1:
        yield f"fewer than {REPEATS} repeats of {joined(few)}: too few for an interval (repeats={REPEATS} gives one)"
    unsteady = [
        f"{cell.variant} {interval_text(found, 's')}"
        for figure in figures
        for cell in figure.cells
        if figure.key == "step_time_s"
        and (found := cell.estimate) is not None
        and found.low is not None
        and found.high is not None
        and found.high - found.low > 2 * UNSTEADY * found.median
    ]
    if unsteady:
        yield Doubt(f"unsteady: repeats differ so much that step times are known only so far: {', '.join(unsteady)}")
    if any(cell.ratio is not None and cell.ratio.count > 1 for figure in figures for cell in figure.cells):
        yield "ratios are medians over pairs of repeats, the n-th of one beside the n-th of the other"
    if not _in_turns(compared):
        yield "the repeats of one variant ran after those of another, not in turns: what drifted is in the ratios"


def _in_turns(compared: Sequence[Variant]) -> bool:
    """Whether runs of different variants alternate in time."""
    repeated = [one for one in compared if len(one.compared) > 1]
    if len(repeated) < 2:
        return True
    spans = sorted((one.compared[0].started, one.compared[-1].started) for one in repeated)
    return any(end >= begin for (_, end), (begin, _) in pairwise(spans))


def _levels(compared: Sequence[Variant]) -> Iterator[str]:
    without = [v.label for v in compared if all(run.breakdown is None for run in v.compared)]
    if without:
        yield f"exposed communication was not recorded of {joined(without)}: record=full records it"
    if any(profiled(run)[1] for variant in compared for run in variant.compared):
        yield "steps that the profiler recorded are excluded where others are left"
