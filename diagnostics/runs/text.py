"""Formats runs as plain text for a terminal. Records are untrusted: no markup, no control characters."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diagnostics.contract.formatting import clean, ranks_spoken, region_text
from diagnostics.contract.invocation import command, override, typed
from diagnostics.contract.secrets import masked
from diagnostics.runs.find import Details, Run

COLUMNS = ("run", "state", "steps", "loss", "tokens/s", "age")
_DROPPED = ("tokens/s", "loss", "steps")  # Columns omitted on a narrow terminal, first to last.
_WIDEST = 72  # Longer names do not widen the column.
_STYLES = {"finished": "32", "running": "36", "queued": "36", "preempted": "33"}
"""ANSI colours: green, cyan, yellow; everything else is red."""
_ALARM = "31"


def listing(runs: Sequence[Run], *, columns: int | None, colour: bool) -> str:
    """One line a run under a heading. Written by hand: a table library takes seconds for ten thousand.

    `columns` is the width of the terminal, which limits the columns columns_shown; None for a pipe: all of them.
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


def details(run: Details) -> str:
    """Return status, failure, metrics and the recorded files as plain lines."""
    lines = [
        *_heading(run),
        *_section("summary", run.summary),
        *_section("last record in metrics.jsonl", run.last_metrics),
        *_section("recorded (files)", run.recorded),
    ]
    return "\n".join(lines) + "\n"


def listing_json(runs: Sequence[Run]) -> str:
    """Return the runs as a JSON list with one object per line. Ten thousand runs take a tenth of a second."""
    lines = (json.dumps({name: getattr(run, name) for name in Run.__dataclass_fields__}) for run in runs)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def details_json(run: Details) -> str:
    """Return the details of a run as one JSON object."""
    return json.dumps(masked(asdict(run)), indent=2, default=str) + "\n"


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


def age(seconds: float) -> str:
    """Format an age: `12s`, `5m`, `3h`, `2d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _heading(run: Details) -> list[str]:
    status = run.status
    lines = [f"run       {clean(run.run.path)}", f"state     {clean(run.run.state)}"]
    if status is not None:
        code = "" if status.exit_code is None else f", exit code {clean(status.exit_code)}"
        lines[1] += f" (attempt {clean(status.attempt)}{code})"
        if status.reason and status.reason != (status.failure and status.failure.reason):
            lines.append(f"reason    {clean(status.reason)}")
    lines += [f"problem   {clean(problem)}" for problem in run.run.problems]
    if run.run.age_s is not None:
        lines.append(f"age       {age(run.run.age_s)}")
    if run.overrides:
        lines.append(f"typed     {clean(' '.join(run.overrides))}")
    failure = status.failure if status else None
    if failure is not None:
        where = f" at step {clean(failure.step)}" if failure.step is not None else ""
        where += f" in {clean(region_text(failure.region))}" if failure.region else ""
        who = f"rank {clean(failure.rank)}{where}: " if failure.rank >= 0 else ""
        lines.append(f"failure   {who}{clean(failure.reason)}")
        if failure.victims:
            lines.append(f"victims   {ranks_spoken(failure.victims)}")
    if run.log:
        lines.append(f"log       {clean(run.log)}")
    if run.launcher != "own" and run.run.state in ("lost", "preempted", "failed", "hung", "oom"):
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
