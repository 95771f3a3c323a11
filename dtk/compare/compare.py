"""The pipeline: read the runs, group the repeats, check parity, measure, and only then say who is faster and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.evidence.limits import Limits
from dtk.compare import parity, steps, traces
from dtk.compare.figures import batch_text, figures
from dtk.compare.grid import places
from dtk.compare.group import compares, variants
from dtk.compare.load import load
from dtk.compare.model import Check, Comparison, RunRecord, Variant
from dtk.compare.notes import notes
from dtk.compare.scaling import grows_with_ranks, scaling
from dtk.compare.surroundings import surroundings
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
    """Compare runs; the first is what the others are held against.

    Raises:
        DiagnosticsError: fewer than two runs, one that cannot be read, or runs of different tasks.
    """
    options = options or Options()
    told = options.progress or (lambda _: None)
    different = list({folder.resolve(): folder for folder in folders}.values())
    if len(different) < 2:
        raise DiagnosticsError("a comparison needs at least two runs", "name another, or a pattern such as runs/*ddp*")
    runs = []
    for folder in different:
        told(f"reading {folder.name}")
        runs.append(load(folder, options.limits))
    _same_task(runs)
    runs = [_measured(run, options) for run in runs]
    found = variants(runs, options.warmup_steps)
    compared = [variant for variant in found if variant.compared]
    checks = _gate(compared, options) if compared else []
    fair = not any(check.status == "differs" for check in checks)
    measured = figures(compared, options.warmup_steps, ratios=fair) if compared else []
    return Comparison(
        variants=tuple(found),
        checks=tuple(checks),
        figures=tuple(measured),
        verdicts=tuple(verdicts(compared, measured)) if fair else (),
        scaling=tuple(scaling(compared, measured)) if fair else (),
        places=tuple(places(found, measured)),
        warmup_steps=options.warmup_steps,
        notes=tuple(notes(found, compared, measured, checks, options.warmup_steps)),
    )


def _same_task(runs: Sequence[RunRecord]) -> None:
    first = parity.task(runs[0])
    for run in runs[1:]:
        if (other := parity.task(run)) != first:
            told = f"{runs[0].path} trains {first} and {run.path} {other}: they have no figure in common"
            raise DiagnosticsError(told, "compare runs of one task")


def _measured(run: RunRecord, options: Options) -> RunRecord:
    """With what its telemetry and its traces say, where it has steps to speak of."""
    if not compares(run, options.warmup_steps):
        return run
    begin_s, end_s = steps.timespan_s(run, options.warmup_steps)
    around = surroundings(run.path, begin_s, end_s, options.limits)
    step_time_s = steps.step_time_s(run, options.warmup_steps)
    energy_j = sum(around.watts.values()) * step_time_s if around.watts else None
    made = replace(run, energy_j=energy_j, disturbances=tuple(around.disturbances), clocks_mhz=around.clocks_mhz)
    if traces.has_traces(run.path):
        found, causes = traces.explain(run.path, options.limits, options.progress)
        made = replace(made, breakdown=found, causes=causes)
    return made


def _gate(compared: Sequence[Variant], options: Options) -> list[Check]:
    """Parity within each batch; across batches where each has several variants, or the batch grows with the ranks."""
    batches: dict[str, list[Variant]] = {}
    for variant in compared:
        batches.setdefault(batch_text(variant.any), []).append(variant)
    if len(batches) == 1 or all(len(one) > 1 for one in batches.values()):
        return _merged([_checks(one, options, weak=False) for one in batches.values()], list(batches))
    return _checks(compared, options, weak=grows_with_ranks(compared))


def _checks(compared: Sequence[Variant], options: Options, *, weak: bool) -> list[Check]:
    return parity.checks(compared, compared[0].compared[0], weak=weak, tolerance=options.loss_tolerance)


def _merged(found: Sequence[Sequence[Check]], batches: Sequence[str]) -> list[Check]:
    """One check of each kind: the worst of all batches, with the batch where there are several."""
    order = ("differs", "unknown", "same")
    merged = []
    for same_kind in zip(*found, strict=True):
        worst = min(same_kind, key=lambda check: order.index(check.status))
        if len(batches) > 1:
            alike = [(b, c) for b, c in zip(batches, same_kind, strict=True) if c.status == worst.status]
            details = list(dict.fromkeys(check.detail for _, check in alike))
            told = details[0] if len(details) == 1 else "; ".join(f"{b}: {c.detail}" for b, c in alike)
            worst = replace(worst, detail=told)
        merged.append(worst)
    return merged
