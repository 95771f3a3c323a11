"""The comparison: reads runs, groups repeats, checks parity, measures, then reports which is faster and why."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from diagnostics.causes.registry import traits
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.findings import text_of
from diagnostics.contract.grouping import grouped
from diagnostics.diagnose import Options as DiagnoseOptions, diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.metrics import WARMUP_STEPS
from diagnostics.report.measures import Breakdown, breakdown
from dtk.compare import parity
from dtk.compare.figures import batch_text, figures
from dtk.compare.group import compares, grows_with_ranks, scaling, variants
from dtk.compare.load import load, surrounded
from dtk.compare.model import Check, Comparison, Figure, GridCell, RunRecord, Variant, medians
from dtk.compare.notes import notes, verdicts


def compare(
    folders: Sequence[Path],
    *,
    warmup_steps: int = WARMUP_STEPS,
    loss_tolerance: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Compare runs with the first.

    `loss_tolerance` is the relative tolerance of losses; None derives it from the dtype. DiagnosticsError if a run is
    alone, one cannot be read, or their tasks differ.
    """
    limits = Limits()
    different = list({folder.resolve(): folder for folder in folders}.values())
    if len(different) < 2:
        raise DiagnosticsError("a comparison needs at least two runs", "name another, or a pattern such as runs/*ddp*")
    runs: list[RunRecord] = []
    for folder in different:
        progress(f"reading {folder.name}")
        runs.append(load(folder, limits, warmup_steps))
        if (task := parity.task(runs[-1])) != (first := parity.task(runs[0])):
            what = f"{runs[0].path} trains {first} and {folder} {task}: they have no figure in common"
            raise DiagnosticsError(what, "compare runs of one task")
    for n, run in enumerate(runs):
        if compares(run):  # Then it has steps for its telemetry and its traces.
            profiled, causes = explain(run.path, limits, progress)
            runs[n] = replace(surrounded(run, limits), breakdown=profiled, causes=causes)
    every = variants(runs)
    compared = [variant for variant in every if variant.compared]
    checks = _gate(compared, loss_tolerance) if compared else []
    fair = not any(check.status == "differs" for check in checks)
    measured = figures(compared, ratios=fair) if compared else []
    return Comparison(
        variants=tuple(every),
        checks=tuple(checks),
        figures=tuple(measured),
        verdicts=tuple(verdicts(compared, measured)) if fair else (),
        scaling=tuple(scaling(compared, measured)) if fair else (),
        grid=tuple(grid(every, measured)),
        warmup_steps=warmup_steps,
        notes=tuple(notes(every, compared, measured, checks, warmup_steps)),
    )


def _gate(compared: Sequence[Variant], tolerance: float | None) -> list[Check]:
    """Parity within each batch; across batches where each has several variants, or the batch grows with the ranks."""

    def checks(members: Sequence[Variant], *, weak: bool = False) -> list[Check]:
        return parity.checks(members, members[0].compared[0], weak=weak, tolerance=tolerance)

    batches = grouped((batch_text(variant.any), variant) for variant in compared)
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


_BATCH = ("batch=", "micro=", "tokens=")  # How the words of a label begin that belong to the column.


def grid(variants: Sequence[Variant], figures: Sequence[Figure]) -> list[GridCell]:
    """Return one cell per variant, in its row and column; empty unless there are several of both."""
    keys = ("step_time_s", "tokens_per_s", "peak_memory_bytes")
    times_s, speeds, peaks = (medians(figures, key) for key in keys)
    batches = [(*variant.any.batch, variant.any.get("train.micro_batch_size")) for variant in variants]
    samples, tokens = {batch[0] for batch in batches}, {batch[1] for batch in batches}
    # Left to itself the micro-batch follows the batch: it is a column of its own only if it was varied.
    alone = len(set(batches)) > len({batch[:2] for batch in batches})
    cells = []
    for variant, (sample, token, micro) in zip(variants, batches, strict=True):
        parts = [f"batch {sample}"] if len(samples) > 1 or not alone else []
        parts += [f"{token} tokens"] if len(tokens) > 1 else []
        parts += [f"micro {micro}"] if alone else []
        label = variant.label
        row = " ".join(word for word in label.split(" ") if not word.startswith(_BATCH))
        figures_of = (times_s.get(label), speeds.get(label), peaks.get(label))
        cells.append(GridCell(row, ", ".join(parts), label, *figures_of, variant.outcome))
    rows, columns = Counter(cell.row for cell in cells), Counter(cell.column for cell in cells)
    crossed = len(rows) > 1 and max(rows.values()) > 1 and max(columns.values()) > 1
    return cells if crossed else []


def explain(folder: Path, limits: Limits, progress: Callable[[str], None]) -> tuple[Breakdown | None, tuple[str, ...]]:
    """Return the breakdown of a profiled step and confirmed causes of slowness or memory; (None, ()) without traces."""
    if not any((folder / "traces").glob("rank_*")):
        return None, ()
    try:
        report = diagnose(folder, DiagnoseOptions(limits=limits, progress=progress))
    except DiagnosticsError:
        return None, ()
    causes = [
        f"{report.title(decided.finding.cause)}: {text_of(decided.finding).summary}"
        for decided in report.findings
        if decided.finding.verdict == "confirmed" and traits(decided.finding.cause).verified_by
    ]
    return breakdown(report.measures), tuple(causes)
