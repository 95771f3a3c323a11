"""How runs look in a terminal and in plain text. What was read is untrusted: no markup, no control characters."""

import contextlib
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diagnostics.invocation import command, override, typed
from diagnostics.runs import Details, Run

_COLUMNS = ("run", "state", "steps", "loss", "tokens/s", "age")
_STYLES = {"finished": "green", "running": "cyan", "preempted": "yellow"}


def clean(value: Any) -> str:
    """Text without line breaks and terminal control sequences: those are shown, not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def listing(runs: Sequence[Run], *, terminal: bool) -> str:
    """One line a run. Coloured when it goes to a terminal, else aligned plain text."""
    rows = [_row(run) for run in runs]
    return _coloured(rows) if terminal else _plain([_COLUMNS, *rows])


def details(run: Details) -> str:
    """Status, failure, figures and what was recorded, as plain lines."""
    lines = _heading(run)
    lines += _section("summary", run.summary)
    lines += _section("last record in metrics.jsonl", run.last_metrics)
    lines += _section("recorded (files)", run.recorded)
    return "\n".join(lines) + "\n"


def details_json(run: Details) -> str:
    """The same as one JSON object."""
    return json.dumps(run.as_json(), indent=2, default=str) + "\n"


def _row(run: Run) -> tuple[str, ...]:
    return (
        clean(run.id),
        clean(run.state),
        "-" if run.step is None else f"{run.step}",
        "-" if run.loss is None else f"{run.loss:.4f}",
        "-" if run.tokens_per_s is None else f"{run.tokens_per_s:,.0f}",
        "-" if run.age_s is None else _age(run.age_s),
    )


def _age(seconds: float) -> str:
    """`12s`, `5m`, `3h`, `2d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _plain(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "".join(line.rstrip() + "\n" for line in lines)


def _coloured(rows: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if i < 2 else "right", overflow="fold")
    for row in rows:
        state = Text(row[1], style=_STYLES.get(row[1], "red"))
        table.add_row(Text(row[0]), state, *(Text(cell) for cell in row[2:]))
    out = io.StringIO()
    Console(file=out, force_terminal=True, markup=False, highlight=False).print(table)
    return out.getvalue()


def _heading(run: Details) -> list[str]:
    status = run.status
    lines = [f"run       {clean(run.run.path)}", f"state     {clean(run.run.state)}"]
    if status is not None:
        code = "" if status.exit_code is None else f", exit code {clean(status.exit_code)}"
        lines[1] += f" (attempt {clean(status.attempt)}{code})"
        if status.reason:
            lines.append(f"reason    {clean(status.reason)}")
    lines += [f"problem   {clean(problem)}" for problem in run.run.problems]
    if run.run.age_s is not None:
        lines.append(f"age       {_age(run.run.age_s)}")
    if run.overrides:
        lines.append(f"typed     {clean(' '.join(run.overrides))}")
    failure = status.failure if status else None
    if failure is not None:
        where = f" at step {clean(failure.step)}" if failure.step is not None else ""
        where += f" in {clean(failure.region)}" if failure.region else ""
        lines.append(f"failure   rank {clean(failure.rank)}{where}: {clean(failure.reason)}")
        if failure.victims:
            lines.append(f"victims   ranks {clean(', '.join(map(str, failure.victims)))}")
    if run.log:
        lines.append(f"log       {clean(run.log)}")
    if run.run.state in ("lost", "preempted", "failed", "hung", "oom"):
        again = command("run", override("resume", typed(Path(run.run.path))))
        lines.append(f"next      {clean(again)}  (from its last checkpoint, or from the start)")
    return lines


def _section(title: str, values: dict[str, Any]) -> list[str]:
    if not values:
        return []
    width = max(len(clean(key)) for key in values)
    return ["", title, *(f"  {clean(key):<{width}}  {clean(_figure(key, value))}" for key, value in values.items())]


def _figure(key: str, value: Any) -> str:
    if value is None:
        return "n/a"
    if key == "time_s" and isinstance(value, int | float):  # A moment, not a length of time.
        with contextlib.suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(value, UTC).isoformat(sep=" ", timespec="seconds")
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
