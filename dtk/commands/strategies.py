"""`dtk strategies`: the table of all strategies and of the mesh dimensions (strategies.yaml). Torch-free.

Sources: Rajbhandari et al. 2020 (ZeRO), Li et al. 2020 (DDP), Zhao et al. 2023 (FSDP).
"""

import argparse
import shutil

from diagnostics.contract.files import table_beside

_COLUMNS = ("strategy", "parameters", "gradients", "optimizer state", "collectives per step", "sent per rank and step")
_KEYS = ("kept", "collectives", "sent", "use_when")  # The attributes of a strategy's section that make its row.
_WIDE = 120  # With fewer columns each strategy gets several lines instead of a table row.


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    from dtk.console.output import put

    put(render(shutil.get_terminal_size().columns, in_markdown=arguments.markdown))
    return 0


def render(columns: int = _WIDE, *, in_markdown: bool = False) -> str:
    """Return the table of all strategies and dimensions in text of that many columns, or in Markdown."""
    from diagnostics.report import document as doc, markdown, terminal
    from dtk.sharding.registry import CONFIG_TYPES

    table = table_beside(__file__)
    rows = {
        name: {"summary": kind.summary(), **{key: getattr(kind, key) for key in _KEYS}}
        for name, kind in CONFIG_TYPES.items()
    } | table["dimensions"]
    cells = {name: (name, *row["kept"], row["collectives"], row["sent"]) for name, row in rows.items()}
    if in_markdown:
        return markdown.table([_COLUMNS, *cells.values()]) + "\n"
    blocks: list[doc.Block] = []
    if columns >= _WIDE:
        blocks.append(doc.table([_COLUMNS, *cells.values()]))
    else:
        for name, row in rows.items():
            pairs = zip((*_COLUMNS[1:], "use when"), (*cells[name][1:], row["use_when"]), strict=True)
            fields = doc.Fields(tuple(doc.Field(column, cell) for column, cell in pairs))
            blocks.append(doc.Section("", (doc.Paragraph(f"{name}: {row['summary']}"), fields)))
    legend = doc.Section("", (doc.Paragraph(table["legend"]),))
    return terminal.render(doc.Document("", "", (*blocks, legend)), columns=columns, colour=False)
