"""The pipeline: read the runs, group the repeats, check parity, measure, and only then say who is faster and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.evidence.limits import Limits
from dtk.compare import parity, steps, traces
from dtk.compare.figures import batch_text, figures
from dtk.compare.grid import grid
from dtk.compare.group import compares, variants
from dtk.compare.load import load
from dtk.compare.model import Check, Comparison, RunRecord, Variant
from dtk.compare.notes import notes
from dtk.compare.scaling import grows_with_ranks, scaling
from dtk.compare.surroundings import surrounded
from dtk.compare.why import verdicts


@dataclass(frozen=True, slots=True)
class Options:
    """What the user can choose."""

    warmup_steps: int = steps.WARMUP_STEPS
    loss_tolerance: float | None = None
    """Relative; None = by the number format."""
    limits: Limits = field(default_factory=Limits)
    progress: Callable[[str], None] | None = None


def compare(folders: Sequence[Path], options: Options | None = None) -> Comparison:
    """Compare runs; the first is the baseline.

    Raises:
        DiagnosticsError: fewer than two runs, one that cannot be read, or runs of different tasks.
    """
    options = options or Options()
    different = list({folder.resolve(): folder for folder in folders}.values())
    if len(different) < 2:
        raise DiagnosticsError("a comparison needs at least two runs", "name another, or a pattern such as runs/*ddp*")
    runs: list[RunRecord] = []
    for folder in different:
        if options.progress:
            options.progress(f"reading {folder.name}")
        runs.append(load(folder, options.limits))
        if (task := parity.task(runs[-1])) != (first := parity.task(runs[0])):
            what = f"{runs[0].path} trains {first} and {folder} {task}: they have no figure in common"
            raise DiagnosticsError(what, "compare runs of one task")
    for n, run in enumerate(runs):
        if compares(run, options.warmup_steps):  # Then it has steps for its telemetry and its traces.
            span_s, step_s = steps.timespan_s(run, options.warmup_steps), steps.step_time_s(run, options.warmup_steps)
            breakdown, causes = traces.explain(run.path, options.limits, options.progress)
            runs[n] = replace(surrounded(run, *span_s, step_s, options.limits), breakdown=breakdown, causes=causes)
    every = variants(runs, options.warmup_steps)
    compared = [variant for variant in every if variant.compared]
    checks = _gate(compared, options) if compared else []
    fair = not any(check.status == "differs" for check in checks)
    measured = figures(compared, options.warmup_steps, ratios=fair) if compared else []
    return Comparison(
        variants=tuple(every),
        checks=tuple(checks),
        figures=tuple(measured),
        verdicts=tuple(verdicts(compared, measured)) if fair else (),
        scaling=tuple(scaling(compared, measured)) if fair else (),
        grid=tuple(grid(every, measured)),
        warmup_steps=options.warmup_steps,
        notes=tuple(notes(every, compared, measured, checks, options.warmup_steps)),
    )


def _gate(compared: Sequence[Variant], options: Options) -> list[Check]:
    """Parity within each batch; across batches where each has several variants, or the batch grows with the ranks."""

    def checks(members: Sequence[Variant], *, weak: bool = False) -> list[Check]:
        return parity.checks(members, members[0].compared[0], weak=weak, tolerance=options.loss_tolerance)

    batches: dict[str, list[Variant]] = {}
    for variant in compared:
        batches.setdefault(batch_text(variant.any), []).append(variant)
    if len(batches) > 1 and any(len(members) == 1 for members in batches.values()):
        return checks(compared, weak=grows_with_ranks(compared))
    merged = []
    for same_kind in zip(*(checks(members) for members in batches.values()), strict=True):
        worst = min(same_kind, key=lambda check: ("differs", "unknown", "same").index(check.status))
        details = {b: check.detail for b, check in zip(batches, same_kind) if check.status == worst.status}
        if len(set(details.values())) > 1:
            worst = replace(worst, detail="; ".join(f"{batch}: {detail}" for batch, detail in details.items()))
        merged.append(worst)
    return merged
