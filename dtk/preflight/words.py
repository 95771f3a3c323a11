"""What a preflight found, as text for people and as JSON for programs."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from diagnostics.report import jsonform
from diagnostics.report import markdown as report_markdown
from diagnostics.report import terminal as report_terminal
from diagnostics.report.console import written
from dtk.preflight.make import Preflight
from dtk.preflight.what_if import Tried
from dtk.words import counted

SCHEMA = "dtk.preflight/1"


def answer(found: Preflight) -> str:
    """One line: whether it ends, and what that is based on."""
    if found.verdict.ends:
        return f"would end: every rank comes to its end ({_basis(found)})"
    return f"would hang: {found.verdict.stands} ({_basis(found)})"


def terminal(found: Preflight, *, columns: int | None, colour: bool, verbose: bool, page: str) -> str:
    """For a terminal; arguments as for the report of `dtk diagnose`."""
    text = answer(found) + "\n"
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
        rows = [f"| {one.mishap.title} | {_outcome(one)} | {one.cause} | {one.where} |" for one in found.tried]
        head = [f"| if on rank {found.tried[0].rank} | then | cause | where |", "|---|---|---|---|"]
        text += "\n" + "\n".join([*head, *rows]) + "\n"
    return text if found.verdict.report is None else f"{text}\n{report_markdown.render(found.verdict.report)}"


def dumps(found: Preflight) -> str:
    """One JSON object; `report` is that of `dtk diagnose --json`, null when every rank ends."""
    report = found.verdict.report
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "ends": found.verdict.ends,
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


def _table(tried: tuple[Tried, ...], columns: int | None) -> str:
    table = Table(title=f"What if, on rank {tried[0].rank} alone:", title_justify="left", safe_box=True)
    for column in ("what happens there", "the job", "cause", "where to look"):
        table.add_column(column, overflow="fold")
    for one in tried:
        table.add_row(one.mishap.title, _outcome(one), one.cause, _near(one.where))
    return written(lambda console: console.print(table), columns=columns, colour=False)


def _near(where: str) -> str:
    """A path as seen from here."""
    try:
        return str(Path(where).relative_to(Path.cwd()))
    except ValueError:
        return where
