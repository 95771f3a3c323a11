"""The table of all strategies and dimensions (table.yaml) for `dtk strategies` and the documentation. Torch-free.

Sources: Rajbhandari et al. 2020 (ZeRO), Li et al. 2020 (DDP), Zhao et al. 2023 (FSDP).
"""

import io
import textwrap

from diagnostics.contract.files import table_beside
from dtk.strategies.registry import CONFIG_TYPES
from dtk.strategies.traits import TableRow

_COLUMNS = ("strategy", "parameters", "gradients", "optimizer state", "collectives per step", "sent per rank and step")
_WIDE = 120  # With fewer columns each strategy gets several lines instead of a table row.
_LEGEND = (
    "P parameter bytes, K optimizer state bytes (AdamW: 2 P), N ranks, A accumulation steps. Of dimensions: L blocks, "
    "micro-batches of b x s tokens of width h, e bytes each, r = kv_heads/heads, k experts per token. "
    "Every run adds one all_reduce of 24 bytes per step on the control group, and on logging steps "
    "one of 4 bytes; clipping adds 4 bytes where gradients are sharded."
)


def render(form: str = "terminal", columns: int = _WIDE) -> str:
    """Return the table of all strategies as `markdown`, or `terminal` text of that many columns; else ValueError."""
    dimensions = {name: TableRow(**row) for name, row in table_beside(__file__).items()}
    rows = {**{name: section.row for name, section in CONFIG_TYPES.items()}, **dimensions}
    cells = {name: (name, *row.kept, row.collectives, row.sent) for name, row in rows.items()}
    if form == "markdown":
        lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in cells.values()]) + "\n"
    if form != "terminal":
        raise ValueError(f"unknown form {form!r}")
    if columns >= _WIDE:
        from rich.console import Console
        from rich.table import Table

        table, out = Table(caption=_LEGEND), io.StringIO()
        for column in _COLUMNS:
            table.add_column(column, overflow="fold")
        for cells_of_row in cells.values():
            table.add_row(*cells_of_row)
        Console(file=out, width=columns).print(table)
        return out.getvalue()
    label, lines = 1 + max(map(len, _COLUMNS)), []
    for name, row in rows.items():
        lines += _folded(f"{name}: {row.summary}", "", columns)
        for column, cell in zip((*_COLUMNS[1:], "use when"), (*cells[name][1:], row.use_when), strict=True):
            lines += _folded(cell, f"  {column:<{label}}", columns)
        lines.append("")
    return "\n".join([*lines, *_folded(_LEGEND, "", columns)]) + "\n"


def _folded(text: str, label: str, columns: int) -> list[str]:
    width = max(columns, len(label) + 20)
    return textwrap.wrap(text, width, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False)
