"""The doctor's answer as text for people and JSON for programs. Decides nothing but the exit code."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diagnostics.contract.formatting import counted
from diagnostics.report.console import written
from diagnostics.runs.text import clean
from dtk.doctor.examine import Made
from dtk.doctor.model import Remedy, Result, Status, worst

SCHEMA = "dtk.doctor/1"
FIT, UNFIT = 0, 1
STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red", "not_applicable": "dim"}
MARKS = {"ok": "ok", "warning": "warning", "failure": "FAILURE", "not_applicable": "n/a"}
FULL_TABLES = 8
"""With more nodes, one that is well takes one line."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine and the checks made on it."""

    number: int
    host: str
    made: tuple[Made, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All machines, and what lies between them."""

    nodes: tuple[Node, ...]
    between: tuple[Made, ...]
    seconds: float

    def status(self) -> Status:
        """The worst of all."""
        return worst(one.result.status for one in self.all())

    def all(self) -> Iterable[Made]:
        """Every check of every node, then those between nodes."""
        for node in self.nodes:
            yield from node.made
        yield from self.between

    def exit_code(self) -> int:
        """1 with a failure anywhere, else 0."""
        return UNFIT if self.status() == "failure" else FIT


def dumps(report: Report) -> str:
    """One JSON object."""
    value = {
        "schema": SCHEMA,
        "status": report.status(),
        "exit_code": report.exit_code(),
        "seconds": round(report.seconds, 3),
        "nodes": [
            {
                "node": node.number,
                "host": node.host,
                "status": worst(one.result.status for one in node.made),
                "checks": [as_plain(one) for one in node.made],
            }
            for node in report.nodes
        ],
        "between": [as_plain(one) for one in report.between],
    }
    return json.dumps(value, indent=2) + "\n"


def as_plain(made: Made) -> dict[str, Any]:
    """A check that was made, for JSON."""
    result = made.result
    return {
        "name": made.name,
        "topic": made.topic,
        "status": result.status,
        "summary": result.summary,
        "details": list(result.details),
        "remedies": [{"what": one.what, "command": one.command} for one in result.remedies],
        "measures": dict(result.measures),
        "common": dict(result.common),
        "seconds": round(made.seconds, 3),
    }


def from_plain(plain: dict[str, Any]) -> Made:
    """The inverse of `as_plain`, for what another node sent."""
    remedies = tuple(Remedy(one["what"], one["command"]) for one in plain["remedies"])
    result = Result(
        plain["status"], plain["summary"], tuple(plain["details"]), remedies, plain["measures"], plain["common"]
    )
    return Made(plain["name"], plain["topic"], result, plain["seconds"])


def terminal(report: Report, *, columns: int | None, colour: bool, verbose: bool) -> str:
    """A table a node, then what lies between them, then the sum.

    Args:
        report: what was found.
        columns: width of the terminal; None = a pipe.
        colour: with colours (ANSI).
        verbose: with the details of checks that are well, and one line for each that does not apply.
    """

    def write(console: Console) -> None:
        for node in report.nodes:
            _node(console, node, alone=len(report.nodes) == 1, brief=_brief(node, report, verbose), verbose=verbose)
        if report.between:
            console.print(Text("between the nodes", style="bold"))
            console.print(_table(report.between, verbose))
            console.print()
        console.print(Text(_sum(report), style=STYLES[report.status()]), soft_wrap=True)

    return written(write, columns=columns, colour=colour)


def _brief(node: Node, report: Report, verbose: bool) -> bool:
    """Whether one line is enough for a node."""
    well = worst(one.result.status for one in node.made) not in ("warning", "failure")
    return well and len(report.nodes) > FULL_TABLES and not verbose


def _node(console: Console, node: Node, *, alone: bool, brief: bool, verbose: bool) -> None:
    title = clean(node.host if alone else f"node {node.number}: {node.host}")
    if brief:
        console.print(Text(f"{title}: all {len(node.made)} checks are ok or do not apply", style="bold"))
        return
    console.print(Text(title, style="bold"))
    console.print(_table(node.made, verbose))
    console.print()


def _table(made: Sequence[Made], verbose: bool) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=not verbose, max_width=24)
    table.add_column(overflow="fold", ratio=1)
    for one in made:
        result = one.result
        if result.status == "not_applicable" and not verbose:
            continue
        lines = [clean(result.summary)]
        if verbose or result.status in ("warning", "failure"):
            lines += [f"  {clean(line)}" for line in result.details]
        text = Text("\n".join(lines))
        for remedy in result.remedies:
            text.append(f"\n  fix: {clean(remedy.what)}", style="cyan")
            if remedy.command:
                text.append(f"\n       {clean(remedy.command)}", style="bold cyan")
        table.add_row(Text(MARKS[result.status], style=STYLES[result.status]), Text(one.name), text)
    if not verbose:
        _inapplicable(table, made)
    return table


def _inapplicable(table: Table, made: Sequence[Made]) -> None:
    """Checks that do not apply for one reason, as one row."""
    reasons: dict[str, list[Made]] = {}
    for one in made:
        if one.result.status == "not_applicable":
            reasons.setdefault(one.result.summary, []).append(one)
    for reason, those in reasons.items():
        text = clean(reason) if len(those) == 1 else f"{clean(reason)} ({', '.join(one.name for one in those)})"
        name = those[0].name if len(those) == 1 else counted(len(those), "check")
        for remedy in dict.fromkeys(remedy for one in those for remedy in one.result.remedies):
            text += f"\n  {clean(remedy.what)}: {clean(remedy.command)}"
        table.add_row(*(Text(part, style=STYLES["not_applicable"]) for part in (MARKS["not_applicable"], name, text)))


def _sum(report: Report) -> str:
    """`1 failure, 2 warnings, 10 ok, 12 not applicable in 8.1 s`."""
    counts = dict.fromkeys(MARKS, 0)
    for one in report.all():
        counts[one.result.status] += 1
    parts = [counted(counts[name], name) for name in ("failure", "warning") if counts[name]]  # type: ignore[index]
    parts += [f"{counts['ok']} ok", f"{counts['not_applicable']} not applicable"]
    where = f" on {counted(len(report.nodes), 'node')}" if len(report.nodes) > 1 else ""
    return f"{', '.join(parts)}{where} ({report.seconds:.1f} s)"
