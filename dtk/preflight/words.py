"""What a preflight found, as text for people and as JSON for programs."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.table import Table

from diagnostics.contract.formatting import counted
from diagnostics.report import jsonform
from diagnostics.report import markdown as report_markdown
from diagnostics.report import terminal as report_terminal
from diagnostics.report.console import written
from dtk.preflight.run import Preflight
from dtk.preflight.what_if import Tried

SCHEMA = "dtk.preflight/1"
COLUMNS = ("what happens there", "the job", "cause", "where the others wait")


def answer(found: Preflight) -> str:
    """One line: whether it ends, and what that is based on."""
    if found.verdict.ends:
        return f"would end: every rank comes to its end ({_basis(found)})"
    return f"{'would hang' if found.verdict.hangs else 'would fail'}: {found.verdict.stands} ({_basis(found)})"


def terminal(found: Preflight, *, columns: int | None, colour: bool, verbose: bool, page: str) -> str:
    """For a terminal; arguments as for the report of `dtk diagnose`."""
    text = answer(found) + "\n"
    if page and found.verdict.report is None:
        text += f"  page    {page}\n"
    if found.job.note:
        text += f"  note    {found.job.note}\n"
    if found.verdict.report is not None:
        text += "\n" + report_terminal.render(
            found.verdict.report, columns=columns, colour=colour, verbose=verbose, page=page
        )
    if found.tried:
        text += "\n" + _table(found.tried, columns)
    return text


def markdown(found: Preflight) -> str:
    """The answer, and the report below it."""
    text = f"**{answer(found)}**\n"
    if found.tried:
        head = [f"| if on rank {found.tried[0].rank} | {' | '.join(COLUMNS[1:])} |", "|---|---|---|---|"]
        text += "\n" + "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows(found.tried))]) + "\n"
    return text if found.verdict.report is None else f"{text}\n{report_markdown.render(found.verdict.report)}"


def dumps(found: Preflight) -> str:
    """One JSON object; `report` is that of `dtk diagnose --json`, null when every rank ends."""
    report = found.verdict.report
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "ends": found.verdict.ends,
        "hangs": found.verdict.hangs,
        "source": found.job.source,
        "world_size": found.job.world_size,
        "simulated_ranks": found.simulated,
        "steps": found.steps,
        "events": found.verdict.outcome.events,
        "seconds": round(found.seconds, 3),
        "stands": found.verdict.stands,
        "what_if": [
            {
                "mishap": one.mishap.title,
                "rank": one.rank,
                "hangs": None if one.skipped else one.hangs,
                "cause": one.cause,
                "where": one.where,
                "stands": one.stands,
                "skipped": one.skipped,
            }
            for one in found.tried
        ],
        "report": None if report is None else json.loads(jsonform.dumps(report)),
    }
    return json.dumps(value, indent=2) + "\n"


def _basis(found: Preflight) -> str:
    world_size, simulated = found.job.world_size, found.simulated
    which = "all simulated" if simulated == world_size else f"{simulated} of them simulated, one of each class"
    steps = counted(found.steps, "step") if found.steps else "to its own end"
    ranks = counted(world_size, "rank")
    return f"{ranks}, {which}; {steps}, {found.verdict.outcome.events:,} calls and waits; {found.seconds:.1f} s"


def _outcome(one: Tried) -> str:
    return f"not tried: {one.skipped}" if one.skipped else "would hang" if one.hangs else "would end"


def rows(tried: tuple[Tried, ...]) -> list[tuple[str, ...]]:
    """The table of mishaps; see COLUMNS."""
    return [(one.mishap.title, _outcome(one), one.cause, _near(one.where)) for one in tried]


def proven(found: Preflight) -> list[tuple[str, ...]]:
    """What a preflight that ends stands on: name and value."""
    steps = str(found.steps) if found.steps else "to its own end"
    value = [("ranks", f"{found.job.world_size:,}"), ("ranks simulated", f"{found.simulated:,}"), ("steps", steps)]
    events = f"{found.verdict.outcome.events:,}"
    return [*value, ("calls and waits of all ranks", events), ("seconds", f"{found.seconds:.1f}")]


def _table(tried: tuple[Tried, ...], columns: int | None) -> str:
    table = Table(title=f"What if, on rank {tried[0].rank} alone:", title_justify="left", safe_box=True)
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for row in rows(tried):
        table.add_row(*row)
    return written(lambda console: console.print(table), columns=columns, colour=False)


def _near(where: str) -> str:
    """`all_reduce at FILE:LINE`, the path as seen from here."""
    call, _, place = where.partition(" at ")
    with suppress(ValueError):
        place = str(Path(place).relative_to(Path.cwd()))
    return f"{call} at {place}" if place else ""
