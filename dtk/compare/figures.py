"""Figures of every variant: median over its repeats, interval, ratio to the first of its batch.

Owns what each figure is and how it is read from one run; intervals are `diagnostics.analysis.statistics`'.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median

from diagnostics.analysis.statistics import estimate, ratio
from dtk.compare import steps
from dtk.compare.model import Cell, Figure, Quantity, RunRecord, Variant

Read = Callable[[RunRecord, int], float | None]


def figures(variants: Sequence[Variant], warmup_steps: int, *, ratios: bool) -> list[Figure]:
    """All quantities that at least one variant has.

    Args:
        variants: with compared runs; of each batch the first is what the others are held against.
        warmup_steps: steps at the beginning that do not count.
        ratios: False = the runs are not comparable, so none is given.
    """
    made = [_figure(one, read, variants, warmup_steps, ratios) for one, read in QUANTITIES.items()]
    return [one for one in made if any(cell.estimate is not None for cell in one.cells)]


def batch_text(run: RunRecord) -> str:
    """`batch 8 x 128`: samples and tokens of a sample."""
    samples, tokens = run.batch
    return f"batch {samples} x {tokens}"


def firsts(variants: Sequence[Variant]) -> dict[str, Variant]:
    """Batch -> the variant that the others of that batch are held against."""
    found: dict[str, Variant] = {}
    for variant in variants:
        found.setdefault(batch_text(variant.any), variant)
    return found


def _figure(one: Quantity, read: Read, variants: Sequence[Variant], warmup_steps: int, ratios: bool) -> Figure:
    references = firsts(variants)
    cells = []
    for variant in variants:
        batch = batch_text(variant.any)
        values = [read(run, warmup_steps) for run in variant.compared]
        known = [value for value in values if value is not None]
        first = references[batch]
        against = [read(run, warmup_steps) for run in first.compared] if ratios and first is not variant else []
        # Repeats were taken in turns, so the n-th of both are a pair.
        pairs = [(a, b) for a, b in zip(values, against, strict=False) if a is not None and b]
        cells.append(
            Cell(
                variant.label,
                batch,
                estimate(known) if known else None,
                ratio([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None,
                _spread(one, variant, warmup_steps),
            )
        )
    return Figure(**asdict(one), cells=tuple(cells))


def _spread(one: Quantity, variant: Variant, warmup_steps: int) -> tuple[float, float] | None:
    if len(variant.compared) > 1 or one.key not in ("tokens_per_s", "step_time_s"):
        return None
    run = variant.compared[0]
    found, tokens = steps.spread_s(run, warmup_steps), steps.tokens_per_step(run)
    if found is None or one.key == "step_time_s":
        return found
    return None if tokens is None else (tokens / found[1], tokens / found[0])


def _speed(run: RunRecord, warmup_steps: int) -> float | None:
    tokens = steps.tokens_per_step(run)
    return None if tokens is None else tokens / steps.step_time_s(run, warmup_steps)


def _memory(run: RunRecord, _: int) -> float | None:
    ranks = run.figures.get("peak_memory_bytes_per_rank")
    values = [one for one in ranks if isinstance(one, int | float)] if isinstance(ranks, list) else []
    values += [one.memory_bytes for one in run.windows if one.memory_bytes is not None]
    return float(max(values)) if values else None


def _mfu(run: RunRecord, warmup_steps: int) -> float | None:
    values = [one.mfu for one in steps.measured(run, warmup_steps) if one.mfu is not None]
    return median(values) if values else None


QUANTITIES: dict[Quantity, Read] = {
    Quantity(
        "tokens_per_s",
        "tokens/s",
        "tokens/s",
        "tokens/s",
        "tokens of the global batch over the median step time, all ranks together",
        False,
    ): _speed,
    Quantity(
        "step_time_s",
        "step time",
        "step",
        "s",
        "wall-clock seconds per optimizer step without evaluation and checkpoints: median over the measured steps",
        True,
    ): steps.step_time_s,
    Quantity(
        "peak_memory_bytes",
        "peak memory",
        "memory",
        "bytes",
        "highest point of the fullest rank: tensors by the CUDA allocator, on CPU the process's resident set",
        True,
    ): _memory,
    Quantity(
        "exposed_s",
        "exposed communication",
        "exposed",
        "s",
        "time of a step in which a collective runs and nothing else, mean over ranks, from the profiler's window",
        True,
    ): lambda run, _: None if run.breakdown is None else run.breakdown.exposed_ms / 1e3,
    Quantity(
        "communicated_bytes",
        "communicated",
        "sent",
        "bytes",
        "full buffers of the collectives that one rank issues in a step, as declared by the strategy",
        True,
    ): lambda run, _: run.windows[-1].sent_bytes,
    Quantity(
        "energy_j",
        "energy",
        "energy",
        "J",
        "joules of all devices per step: their mean power over the measured time, times the step time",
        True,
    ): lambda run, _: run.energy_j,
    Quantity(
        "mfu",
        "MFU",
        "MFU",
        "fraction",
        "model FLOPs utilisation, a fraction of 1: median over the measured steps",
        False,
    ): _mfu,
}
