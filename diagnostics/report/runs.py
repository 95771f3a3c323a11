"""Runs as documents: a list as a table and as JSON, in a tenth of a second for ten thousand; details for `dtk show`."""

import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diagnostics.contract.formatting import age, command, override, ranks_spoken, region_text, typed
from diagnostics.report import document as doc
from diagnostics.runs.find import Details, Run

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


def details(run: Details, *, owner: str = "") -> doc.Document:
    """Return the details of a run; `owner` describes its owner if that is another user."""
    sections = (
        _section("summary", run.summary),
        _section("last record in metrics.jsonl", run.last_metrics),
        _section("recorded (files)", run.recorded),
    )
    rows = tuple(doc.Field(label, text) for label, text in (*_heading(run), ("owner", owner)) if text)
    return doc.Document("", "", doc.present(doc.Fields(rows), *sections))


def _heading(run: Details) -> list[tuple[str, str]]:
    status = run.status
    state = run.run.state
    if status is not None:
        code = "" if status.exit_code is None else f", exit code {status.exit_code}"
        state += f" (attempt {status.attempt}{code})"
    rows = [("run", run.run.path), ("state", state)]
    if status is not None and status.reason != (status.failure and status.failure.reason):
        rows.append(("reason", status.reason))
    rows += [("problem", problem) for problem in run.run.problems]
    rows += [("age", age(run.run.age_s))] if run.run.age_s is not None else []
    rows.append(("overrides", " ".join(run.overrides)))
    failure = status.failure if status else None
    if failure is not None:
        where = f" at step {failure.step}" if failure.step is not None else ""
        where += f" in {region_text(failure.region)}" if failure.region else ""
        rows.append(("failure", f"{f'rank {failure.rank}{where}: ' if failure.rank >= 0 else ''}{failure.reason}"))
        rows += [("victims", ranks_spoken(failure.victims))] if failure.victims else []
    rows.append(("log", run.log or ""))
    if run.launcher != "own" and run.run.state in ("lost", "preempted", "failed", "hung", "oom"):
        again = command("run", override("resume", typed(Path(run.run.path))))
        rows.append(("next", f"{again}  (from its last checkpoint, or from the start)"))
    return rows


def _section(title: str, values: dict[str, Any]) -> doc.Section | None:
    rows = tuple(doc.Field(key, _figure(key, value)) for key, value in values.items())
    return doc.Section(title, (doc.Fields(rows),)) if rows else None


def _figure(key: str, value: Any) -> str:
    if value is None:
        return "n/a"
    if key == "time_s" and isinstance(value, int | float):  # A moment, not a length of time.
        with contextlib.suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(value, UTC).isoformat(sep=" ", timespec="seconds")
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
