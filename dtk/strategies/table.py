"""The table of all strategies that `dtk strategies` and the documents show. Torch-free, so it is instant.

P = bytes of all parameters, N = data-parallel ranks, A = accumulation steps, K = bytes of optimizer
state (2 P for AdamW). Sources: Rajbhandari et al. 2020 (ZeRO), Li et al. 2020 (DDP), Zhao et al. 2023 (FSDP).
The dimensions of the mesh have rows too; their letters are those of docs/strategies.md.
"""

import io
import textwrap
from collections.abc import Iterable

from dtk.strategies.registry import CONFIG_TYPES
from dtk.strategies.traits import TableRow

_COLUMNS = ("strategy", "parameters", "gradients", "optimizer state", "collectives per step", "sent per rank and step")


_SHARED = ("as the strategy, N = dp c",) * 3
_DIMENSIONS = {
    "parallel.tp=t": TableRow(
        "layers cut over t ranks, beside any strategy but zero1 and dp",
        *("P/t", "P/t", "K/t"),
        "A (4 L + 2) all_gathers and reduce_scatters of b s h e",
        "A (8 L + 4) b s h e (t-1)/t",
        "a layer is too large or too slow for one device; inside a node",
    ),
    "parallel.pp=p": TableRow(
        "blocks cut into p stages",
        *("P/p", "P/p", "K/p"),
        "send and recv of b s h e per boundary and micro-batch, forward and backward",
        "2 A b s h e (inner stages)",
        "the model is too large for a node",
    ),
    "parallel.cp=c, ulysses": TableRow(
        "sequences cut over c ranks, which exchange tokens for heads in attention",
        *_SHARED,
        "6 A L all_to_alls",
        "A L (4 + 4 r) b s h e (c-1)/c^2",
        "activations of long sequences do not fit, and c divides the heads",
    ),
    "parallel.cp=c, ring": TableRow(
        "sequences cut over c ranks, which send keys and values round in attention",
        *_SHARED,
        "A L (3 c - 2) sends and recvs",
        "A L 2 r b s h ((2 c - 2) e + 4 c)/c",
        "activations of long sequences do not fit",
    ),
}
"""Dimensions of the mesh, which any strategy that implements them goes with: `dtk.dimensions`."""


_WIDE = 120
"""Columns below which each strategy has lines of its own instead of a row."""
_LEGEND = (
    "P parameter bytes, K optimizer state bytes (AdamW: 2 P), N ranks, A accumulation steps. Of dimensions: L blocks, "
    "micro-batches of b x s tokens of width h, e bytes each, r = kv_heads/heads. "
    "Every run adds one all_reduce of 24 bytes per step on the control group, and on logging steps "
    "one of 4 bytes; clipping adds 4 bytes where gradients are sharded."
)


def render(form: str = "terminal", columns: int = _WIDE) -> str:
    """Return the table of all strategies, as `terminal` text of that many columns or as `markdown`.

    Raises:
        ValueError: another form.
    """
    rows = {**{name: section.row for name, section in CONFIG_TYPES.items()}, **_DIMENSIONS}
    cells = {
        name: (name, row.parameters, row.gradients, row.optimizer_state, row.collectives, row.sent)
        for name, row in rows.items()
    }
    if form == "markdown":
        lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in cells.values()]) + "\n"
    if form != "terminal":
        raise ValueError(f"unknown form {form!r}")
    if columns >= _WIDE:
        return _table(cells.values(), columns)
    label, lines = 1 + max(map(len, _COLUMNS)), []
    for name, row in rows.items():
        lines += _folded(f"{name}: {row.summary}", "", columns)
        for column, cell in zip((*_COLUMNS[1:], "use when"), (*cells[name][1:], row.use_when), strict=True):
            lines += _folded(cell, f"  {column:<{label}}", columns)
        lines.append("")
    return "\n".join([*lines, *_folded(_LEGEND, "", columns)]) + "\n"


def _table(rows: Iterable[tuple[str, ...]], columns: int) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=_LEGEND)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=columns).print(table)
    return out.getvalue()


def _folded(text: str, label: str, columns: int) -> list[str]:
    width = max(columns, len(label) + 20)
    return textwrap.wrap(text, width, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False)
