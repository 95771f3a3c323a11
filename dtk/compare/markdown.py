"""A comparison as Markdown, for an issue or a pull request. What comes from files cannot become markup."""

from collections.abc import Sequence

from diagnostics.report.markdown import text
from dtk.compare import tables
from dtk.compare.model import Comparison


def render(found: Comparison) -> str:
    """The whole comparison."""
    parts = [f"**{text(tables.headline(found))}**\n"]
    if found.verdicts:
        parts.append(_list(found.verdicts))
    if found.places:
        parts.append(_titled("Strategies and batches", tables.grid(found)))
    parts.append(_titled("Runs", tables.overview(found)))
    if found.figures:
        parts.append(_titled("Figures", tables.figures(found)))
    if found.scaling:
        parts.append(_titled("Scaling", tables.scaling(found.scaling)))
    if found.checks:
        parts.append(_titled("Parity", tables.parity(found.checks)))
    if found.notes:
        parts.append(f"### Notes\n\n{_list(found.notes)}")
    return "\n".join(parts)


def _titled(title: str, rows: Sequence[Sequence[str]]) -> str:
    return f"### {title}\n\n{_table(rows)}"


def _list(lines: Sequence[str]) -> str:
    return "".join(f"- {text(line)}\n" for line in lines)


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(text(cell) or " " for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"
