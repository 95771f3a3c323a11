"""Rows that every form of a comparison shows, as text: heading first. Knows no form."""

from collections.abc import Sequence

from diagnostics.contract.formatting import bytes_text, seconds_text
from dtk.compare.model import Cell, Check, Comparison, Figure, Scaled, Variant
from dtk.compare.words import interval_text, percent_text, range_text, ratio_text, value_text

Rows = list[tuple[str, ...]]
STATUSES = {"same": "same", "differs": "DIFFERS", "unknown": "unknown"}
OUTCOMES = {"oom": "OOM", "hung": "HUNG", "failed": "FAILED", "lost": "LOST", "no steps": "no steps"}


def headline(found: Comparison) -> str:
    """The answer in one sentence."""
    if not found.compared:
        return "no run has steps to compare"
    if not found.fair:
        wrong = [check.title for check in found.checks if check.status == "differs"]
        return f"not comparable: {', '.join(wrong)} differ{'s' if len(wrong) == 1 else ''}; no speed is compared"
    if found.repeats:
        one = found.variants[0]
        return f"one variant, {len(one.compared):,} repeats of {one.label}: its figures, and none to compare it with"
    if len(found.compared) < 2:
        return f"only {found.compared[0].label} has figures: there is nothing to compare it with"
    best = fastest(found)
    return "comparable: the runs did the same work; " + (
        f"{best} is the fastest" if best else "none is surely the fastest"
    )


def fastest(found: Comparison) -> str:
    """The variant with the shortest step, if all are of one batch; nothing where noise may hide another."""
    figure = next((one for one in found.figures if one.key == "step_time_s"), None)
    cells = [cell for cell in figure.cells if cell.estimate is not None] if figure else []
    if len(cells) < 2 or len({cell.batch for cell in cells}) > 1:
        return ""
    first, second = sorted(cells, key=lambda cell: cell.estimate.median if cell.estimate else 0.0)[:2]
    one, other = first.estimate, second.estimate
    assert one is not None and other is not None
    apart = one.high is not None and other.low is not None and one.high < other.low
    return first.variant if apart else ""


def overview(found: Comparison) -> Rows:
    """One row a variant: medians, and the ratio of the speed."""
    rows: Rows = [("variant", "runs", *(figure.short for figure in found.figures), "speed to the first")]
    for variant in found.variants:
        cells = {figure.key: _cell(figure, variant) for figure in found.figures}
        values = [_median(cells[figure.key], figure) for figure in found.figures]
        speed = cells.get("tokens_per_s")
        ratio = ratio_text(speed.ratio) if speed else ""
        rows.append((variant.label, runs_text(variant), *values, ratio or "-"))
    return rows


def figures(found: Comparison) -> Rows:
    """Every figure of every variant: median, interval over repeats, ratio to the first."""
    rows: Rows = [("figure", "variant", "median", "95 % interval", "ratio to the first")]
    for figure in found.figures:
        for n, cell in enumerate(figure.cells):
            shown = "" if cell.estimate is None else interval_text(cell.estimate, figure.unit)
            if not shown and cell.spread is not None:
                shown = f"steps: {range_text(*cell.spread, figure.unit)}"
            title = figure.title if n == 0 else ""
            rows.append((title, cell.variant, _median(cell, figure), shown or "-", ratio_text(cell.ratio) or "-"))
    return rows


def parity(checks: Sequence[Check]) -> Rows:
    """Every condition, and what was found."""
    return [("condition", "", "found"), *((one.title, STATUSES[one.status], one.detail) for one in checks)]


def scaling(points: Sequence[Scaled]) -> Rows:
    """Every number of ranks."""
    rows: Rows = [("variant", "scaling", "ranks", "tokens/s", "efficiency")]
    rows += [
        (one.series, one.kind, f"{one.world_size:,}", f"{one.tokens_per_s:,.0f}", percent_text(one.efficiency))
        for one in points
    ]
    return rows


def grid(found: Comparison) -> Rows:
    """Strategies x batch sizes: step time and memory, or how it ended."""
    columns = list(dict.fromkeys(one.column for one in found.places))
    rows: Rows = [("step time, memory", *columns)]
    for name in dict.fromkeys(one.row for one in found.places):
        at = {one.column: one for one in found.places if one.row == name}
        texts = []
        for column in columns:
            place = at.get(column)
            if place is None:
                texts.append("-")
            elif place.step_time_s is None:
                texts.append(OUTCOMES.get(place.outcome, place.outcome))
            else:
                memory = "" if place.memory_bytes is None else f", {bytes_text(place.memory_bytes)}"
                texts.append(seconds_text(place.step_time_s) + memory)
        rows.append((name, *texts))
    return rows


def runs_text(variant: Variant) -> str:
    """`3`, `2 of 3, OOM`, `OOM`."""
    good, every = len(variant.compared), len(variant.runs)
    if good == every:
        return str(every)
    outcome = OUTCOMES.get(variant.outcome, variant.outcome)
    return f"{good} of {every}, {outcome}" if good or every > 1 else outcome


def _cell(figure: Figure, variant: Variant) -> Cell | None:
    return next((cell for cell in figure.cells if cell.variant == variant.label), None)


def _median(cell: Cell | None, figure: Figure) -> str:
    if cell is None or cell.estimate is None:
        return "-"
    shown = value_text(cell.estimate.median, figure.unit)
    return shown.removesuffix(f" {figure.unit}") if figure.title == figure.unit else shown
