"""The table of all strategies and dimensions (table.yaml) for `dtk strategies` and the documentation. Torch-free.

Sources: Rajbhandari et al. 2020 (ZeRO), Li et al. 2020 (DDP), Zhao et al. 2023 (FSDP).
"""

from diagnostics.contract.files import table_beside
from diagnostics.report import document as doc, markdown, terminal
from dtk.sharding.registry import CONFIG_TYPES, TableRow, table_row

_COLUMNS = ("strategy", "parameters", "gradients", "optimizer state", "collectives per step", "sent per rank and step")
_WIDE = 120  # With fewer columns each strategy gets several lines instead of a table row.


def render(form: str = "terminal", columns: int = _WIDE) -> str:
    """Return the table of all strategies as `markdown`, or `terminal` text of that many columns; else ValueError."""
    table = table_beside(__file__)
    rows = {name: table_row(name) for name in CONFIG_TYPES}
    rows |= {name: TableRow(**row) for name, row in table["dimensions"].items()}
    cells = {name: (name, *row.kept, row.collectives, row.sent) for name, row in rows.items()}
    if form == "markdown":
        return markdown.table([_COLUMNS, *cells.values()]) + "\n"
    if form != "terminal":
        raise ValueError(f"unknown form {form!r}")
    blocks: list[doc.Block] = []
    if columns >= _WIDE:
        blocks.append(doc.table([_COLUMNS, *cells.values()]))
    else:
        for name, row in rows.items():
            pairs = zip((*_COLUMNS[1:], "use when"), (*cells[name][1:], row.use_when), strict=True)
            fields = doc.Fields(tuple(doc.Field(column, cell) for column, cell in pairs))
            blocks.append(doc.Section("", (doc.Paragraph(f"{name}: {row.summary}"), fields)))
    legend = doc.Section("", (doc.Paragraph(table["legend"]),))
    return terminal.render(doc.Document("", "", (*blocks, legend)), columns=columns, colour=False)
