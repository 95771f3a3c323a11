"""Renders a table of lines for a terminal or a pipe. Needs only the document: rich, which folds cells, takes a hundred
times as long, and as long to import as a small list of runs.
"""

from diagnostics.contract.formatting import clean
from diagnostics.report import document as doc

CODES = {"good": "32", "bad": "1;31", "warn": "33", "soft": "2", "strong": "1", "code": "36"}  # ANSI, as in `terminal`.
_WIDEST = 72  # Wider cells only shift the rest of their own line.


def render(table: doc.Table, *, columns: int | None, colour: bool) -> str:
    """Return a line for each row; columns that do not fit a terminal of `columns` are omitted, a pipe gets all."""
    heading = [doc.Span(name, "strong") for name in table.header]
    rows = [heading, *([doc.spans(doc.cell_of(value).text)[0] for value in row] for row in table.rows)]
    texts = [[clean(span.text) for span in row] for row in rows]
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*texts, strict=True)]
    shown = list(range(len(widths)))
    for n in table.spare:
        if columns is not None and sum(widths[i] + 2 for i in shown) - 2 > columns:
            shown.remove(n)
    sides = [str.rjust if table.is_numeric(n) else str.ljust for n in range(len(widths))]
    lines = []
    for row, words in zip(rows, texts, strict=True):
        cells = [sides[n](words[n], widths[n]) for n in shown]
        for at, n in enumerate(shown if colour else ()):
            cells[at] = f"\x1b[{CODES[row[n].tone]}m{cells[at]}\x1b[0m" if row[n].tone else cells[at]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
