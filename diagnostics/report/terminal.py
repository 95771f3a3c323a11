"""Renders a document for a terminal or a pipe. Control characters are made visible, and nothing is read as markup."""

import io
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text as Rich
from rich.tree import Tree as Drawing

from diagnostics.contract.formatting import clean
from diagnostics.report import document as doc, lines

PIPE_COLUMNS = 160  # Width of tables if the output is not a terminal; sentences are not wrapped then.
LABEL = 8  # Minimum width of the labels of fields.
_CARD = 36  # Minimum columns of each of several cards in a row.
_SHORTEST = 12  # Number of characters kept of a shortened path.
_STYLES = {"good": "green", "bad": "bold red", "warn": "yellow", "soft": "dim", "strong": "bold", "code": "cyan"}
_MARKS = {"confirmed": ("[x]", "bold red"), "undecided": ("[?]", "yellow"), "ruled_out": ("[ ]", "dim")}


def render(document: doc.Document, *, columns: int | None, colour: bool) -> str:
    """Return the document as text without trailing spaces; without `columns`, sentences are not wrapped."""
    out = io.StringIO()
    console = Console(
        file=out, width=columns or PIPE_COLUMNS, force_terminal=colour, no_color=not colour, safe_box=True,
        color_system="standard" if colour else None, markup=False, highlight=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    writer = _Writer(console, wrap=columns is not None)
    if document.prelude:
        writer.blocks(document.prelude)
        console.print()
    if document.answer:
        writer.answer(document)
    writer.blocks((*document.lead, *document.blocks))
    return "".join(line.rstrip() + "\n" for line in out.getvalue().lstrip("\n").splitlines())


def _styled(text: doc.Text, tone: str = "") -> Rich:
    styled = Rich(style=_STYLES.get(tone, ""))
    for span in doc.spans(text):
        styled.append(clean(span.text), style=_STYLES.get(span.tone, ""))
    return styled


class _Writer:
    def __init__(self, console: Console, *, wrap: bool) -> None:
        self.console = console
        self.wrap = wrap
        self.aside_is_shown = False

    def answer(self, document: doc.Document) -> None:
        """Write the first line, followed by its field if there is space."""
        lead = doc.shown(document.lead, "terminal")
        rows = [row for block in lead if isinstance(block, doc.Fields) for row in block.rows]
        aside = "".join(f" [{doc.plain(row.text)}]" for row in rows if row.beside_answer)
        whole = (*doc.spans(document.answer), doc.Span(aside, "soft"))
        self.aside_is_shown = not self.wrap or len(_styled(whole)) <= self.console.width
        self.paragraph(whole if self.aside_is_shown else document.answer)

    def blocks(self, blocks: Sequence[doc.Block]) -> None:
        """Write blocks without charts; consecutive fields are aligned."""
        for kind, group in groupby(doc.shown(blocks, "terminal"), type):
            if kind is doc.Fields:
                self.fields([row for block in group if isinstance(block, doc.Fields) for row in block.rows])
                continue
            for block in group:
                self.block(block)

    def block(self, block: doc.Block) -> None:
        match block:
            case doc.Paragraph():
                self.paragraph(block.text)
            case doc.Items():
                self.fields([doc.Field("-", item) for item in block.items], width=2)
            case doc.Remedy():
                self.fields([doc.Field("fix", f"{block.change} ({block.why})" if block.why else block.change)])
            case doc.Table(kind="lines"):
                columns = self.console.width if self.wrap else None
                self.console.file.write(lines.render(block, columns=columns, colour=not self.console.no_color))
            case doc.Table():
                self.console.print(_grid(block))
            case doc.Cards():
                self.cards(block)
            case doc.Tree():
                self.console.print(_drawing(block.root))
            case doc.Fold():
                self.blocks(block.blocks)
            case doc.Section():
                self.console.print()
                if block.title:
                    self.paragraph(doc.plain(doc.capitalised(block.title)), "bold underline")
                self.blocks(block.blocks)
            case _:
                pass

    def paragraph(self, text: doc.Text, style: str = "") -> None:
        styled = _styled(text)
        styled.stylize(style)
        self.console.print(styled, soft_wrap=not self.wrap)

    def fields(self, rows: Sequence[doc.Field], width: int = 0) -> None:
        width = width or max([LABEL, *(len(clean(row.label)) + 1 for row in rows)])
        for row in rows:
            if row.beside_answer and self.aside_is_shown:
                continue
            label = Rich(clean(row.label), style="dim")
            if not self.wrap:
                label.pad_right(width - len(label))
                self.console.print(Rich().append_text(label).append_text(_styled(row.text, row.tone)), soft_wrap=True)
                continue
            text = _styled(row.text, row.tone)
            if row.brief:
                text = _on_one_line(row, self.console.width - width)
            grid = Grid.grid(padding=0)
            grid.add_column(width=width)
            grid.add_column(overflow="fold")
            grid.add_row(label, text)
            self.console.print(grid)

    def cards(self, block: doc.Cards) -> None:
        if not block.cards:
            return
        self.console.print()
        longest = max((len(doc.plain(line)) for card in block.cards for line in card.lines[-1:]), default=0)
        count = len(block.cards)
        beside = count if self.console.width // count >= max(_CARD, longest + 3) else 1
        for start in range(0, count, beside):
            row = block.cards[start : start + beside]
            grid = Grid.grid(padding=(0, 3), expand=self.wrap)
            for _ in row:
                grid.add_column(ratio=1, overflow="fold")
            grid.add_row(*(Rich(clean(card.title), style="bold") for card in row))
            for n in range(max(len(card.lines) for card in row)):
                grid.add_row(*(_styled(card.lines[n]) if n < len(card.lines) else "" for card in row))
            self.console.print(grid)
        self.console.print()


def _on_one_line(row: doc.Field, room: int) -> Rich:
    """Return a field's text, or its brief text if space is too small, with paths shortened at the start if needed."""
    whole = _styled(row.text, row.tone)
    if len(whole) <= room:
        return whole
    pieces = doc.spans(row.brief)
    excess = sum(len(clean(span.text)) for span in pieces) - room
    styled = Rich(style=_STYLES.get(row.tone, ""))
    for span in pieces:
        text = clean(span.text)
        if span.elastic and excess > 0:
            text = "..." + text[min(excess + 3, max(0, len(text) - _SHORTEST)) :]
        styled.append(text, style=_STYLES.get(span.tone, ""))
    styled.truncate(room, overflow="ellipsis")
    return styled


def _grid(block: doc.Table) -> Grid:
    bare = not any(block.header)
    grid = Grid(box=None, pad_edge=False, show_header=not bare)
    for n, name in enumerate(block.header):
        grid.add_column(Rich(clean(name)), justify="right" if block.is_numeric(n) else "left", overflow="fold")
    for row in block.rows:
        cells: list[RenderableType] = []
        for value in row:
            cell = doc.cell_of(value)
            text = _styled(cell.text, cell.tone)
            for line in cell.below:
                text.append("\n").append_text(_styled(line))
            cells.append(text)
        grid.add_row(*cells)
    return grid


def _drawing(node: doc.Node) -> Drawing:
    mark, style = _MARKS[node.mark]
    text = Rich(f"{mark} ", style=style)
    text.append(clean(node.title), style="" if node.mark == "confirmed" else "dim")
    text.append(f" ({clean(node.name)})" if node.is_gate else f" [{clean(node.name)}]", style="dim")
    text.append_text(_styled(node.brief))
    drawing = Drawing(text, guide_style="dim")
    for child in () if node.folded else node.children:
        drawing.children.append(_drawing(child))
    return drawing
