"""Notes on the figures: excluded runs, disturbances, differences. A note never decides."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from diagnostics.contract.formatting import counted, joined
from diagnostics.contract.strategy_traits import strategy_traits
from diagnostics.runs.records import as_mapping
from dtk.compare.formatting import interval_text
from dtk.compare.group import machine
from dtk.compare.model import Check, Doubt, Figure, Variant
from dtk.compare.statistics import FEWEST, METHOD
from dtk.compare.steps import profiled

UNSTEADY, CLOCKS = 0.10, 0.05
"""Spread of repeats over their median, and relative difference of clocks, from which on there is a warning."""
DISTURBED_SHOWN = 3  # Chosen: further ones are only counted.


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
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for variant in compared:
        for run in variant.compared:
            for disturbance in run.disturbances:
                case = (f"{variant.label} {disturbance.how} ({run.name})", run.name)
                by_kind.setdefault(disturbance.what, []).append(case)
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
