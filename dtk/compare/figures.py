"""Figures of each variant: read from its runs, with the median over repeats, interval and ratio to the first."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from diagnostics.contract.files import table_beside
from dtk.compare import steps
from dtk.compare.model import Cell, Figure, RunRecord, Variant
from dtk.compare.statistics import Estimate, estimate

Read = Callable[[RunRecord], float | None]


def figures(variants: Sequence[Variant], *, ratios: bool) -> list[Figure]:
    """Return all quantities that at least one variant has.

    The first variant of each batch is the baseline of its ratios, which `ratios=False` omits, as the runs are not
    comparable.
    """
    rows = [
        Figure(key, **texts, cells=tuple(_cells(key, variants, ratios)))
        for key, texts in table_beside(__file__).items()
    ]
    return [row for row in rows if any(cell.estimate is not None for cell in row.cells)]


def batch_text(run: RunRecord) -> str:
    """Return `batch 8 x 128`: samples and tokens of a sample."""
    samples, tokens = run.batch
    return f"batch {samples} x {tokens}"


def baselines(variants: Sequence[Variant]) -> dict[str, Variant]:
    """Return batch -> the first variant of that batch, with which the others are compared."""
    return {batch_text(variant.any): variant for variant in reversed(variants)}


def ratio_of(read: Read, runs: Sequence[RunRecord], baseline: Sequence[RunRecord]) -> Estimate | None:
    """Return a figure over the baseline's; None without a pair.

    Repeats were taken in turns, so the n-th are a pair, in whose ratio what drifts over both alike cancels.
    """
    values = [(read(run), read(base)) for run, base in zip(runs, baseline, strict=False)]
    ratios = [value / base for value, base in values if value is not None and base]
    return estimate(ratios) if ratios else None


def _cells(key: str, variants: Sequence[Variant], ratios: bool) -> Iterator[Cell]:
    references, read = baselines(variants), READ[key]
    for variant in variants:
        batch = batch_text(variant.any)
        recorded = [value for run in variant.compared if (value := read(run)) is not None]
        against = references[batch].compared if ratios and references[batch] is not variant else ()
        over = ratio_of(read, variant.compared, against)
        spread = None
        if len(variant.compared) == 1:  # The middle half of its steps, of the two figures that each step has.
            times_s, tokens = steps.spread_s(variant.any), steps.tokens_per_step(variant.any)
            if times_s is not None and tokens is not None and key == "tokens_per_s":
                spread = tokens / times_s[1], tokens / times_s[0]
            spread = times_s if key == "step_time_s" else spread
        yield Cell(variant.label, batch, estimate(recorded) if recorded else None, over, spread)


def _memory(run: RunRecord) -> float | None:
    ranks = run.figures.get("peak_memory_bytes_per_rank")
    values = [value for value in ranks if isinstance(value, int | float)] if isinstance(ranks, list) else []
    values += [window.memory_bytes for window in run.windows if window.memory_bytes is not None]
    return float(max(values)) if values else None


READ: dict[str, Read] = {
    "tokens_per_s": lambda run: (
        tokens / steps.step_time_s(run) if (tokens := steps.tokens_per_step(run)) is not None else None
    ),
    "step_time_s": steps.step_time_s,
    "peak_memory_bytes": _memory,
    "exposed_s": lambda run: run.breakdown.exposed_ms / 1e3 if run.breakdown else None,
    "communicated_bytes": lambda run: run.windows[-1].sent_bytes,
    "energy_j": lambda run: run.energy_j,
    "mfu": lambda run: (
        median(values) if (values := [each.mfu for each in steps.measured(run) if each.mfu is not None]) else None
    ),
}
"""Key of a figure -> how it is read from a run."""
