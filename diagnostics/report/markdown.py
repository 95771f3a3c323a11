"""Renders a document as Markdown, for an issue or a pull request. Text from evidence cannot become markup."""

import re
from collections.abc import Sequence

from diagnostics.contract.formatting import clean
from diagnostics.report import document as doc

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~<>&@]|:(?=\S))")
_MARKS = {"confirmed": "[x]", "undecided": r"\[?\]", "ruled_out": "[ ]"}


def render(document: doc.Document) -> str:
    """Return the document as Markdown without its charts."""
    heading = f"# {_inline(tuple(doc.Span(span.text) for span in doc.spans(document.answer or document.title)))}"
    return "\n\n".join([*_blocks(document.prelude), heading, *_blocks((*document.lead, *document.blocks))]) + "\n"


def text(value: str) -> str:
    """Return plain text: every character that Markdown or HTML could read as markup is escaped."""
    return _SPECIAL.sub(r"\\\1", clean(value))


def code(value: str) -> str:
    """Return a code span around text that may contain backticks."""
    content = clean(value) or " "
    ticks = "`" * (max((len(run) for run in re.findall("`+", content)), default=0) + 1)
    space = " " if content.startswith("`") or content.endswith("`") else ""
    return f"{ticks}{space}{content}{space}{ticks}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells in Markdown as a table; the first row is its heading."""
    head, *body = ["| " + " | ".join(cell or " " for cell in row) + " |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def _inline(value: doc.Text, *, in_table: bool = False) -> str:
    """Return a text with its code spans and strong parts; other tones are colours, which Markdown does not have."""
    pieces = []
    for span in doc.spans(value):
        if span.tone == "code" and span.text:
            pieces.append(code(span.text).replace("|", "\\|") if in_table else code(span.text))
        else:
            pieces.append(f"**{text(span.text)}**" if span.tone == "strong" else text(span.text))
    return "".join(pieces)


def _blocks(blocks: Sequence[doc.Block]) -> list[str]:
    return [rendered for block in doc.shown(blocks, "markdown") if (rendered := _block(block))]


def _block(block: doc.Block) -> str:
    match block:
        case doc.Paragraph():
            return _inline(block.text)
        case doc.Items():
            return "\n".join(f"- {_inline(item)}" for item in block.items)
        case doc.Fields():
            return "\n".join(f"- **{text(row.label)}**: {_inline(row.text)}" for row in block.rows)
        case doc.Remedy():
            why = f" - {text(block.why)}" if block.why else ""
            saves = f" (saves {text(block.saves)})" if block.saves else ""
            return f"- **fix**{f' ({block.kind})' if block.kind else ''}: {code(block.change)}{why}{saves}"
        case doc.Table():
            rows = [[text(name) for name in block.header]]
            for row in block.rows:
                cells = [[_inline(line, in_table=True) for line in (c.text, *c.below)] for c in map(doc.cell_of, row)]
                rows.append(["; ".join(filter(None, lines)) for lines in cells])
            return table(rows)
        case doc.Cards():
            lines = [", ".join(map(_inline, reversed(card.lines))) for card in block.cards]
            return "\n".join(f"- **{text(card.title)}**: {line}" for card, line in zip(block.cards, lines, strict=True))
        case doc.Tree():
            return "".join(_node(child, 0) for child in block.root.children).rstrip("\n")
        case doc.Fold():
            return "\n\n".join([f"**{text(block.title)}**", *_blocks(block.blocks)])
        case doc.Section():
            heading = [f"{'#' * block.level} {_inline(doc.capitalised(block.title))}"] if block.title else []
            return "\n\n".join([*heading, *_blocks(block.blocks)])
        case _:
            return ""


def _node(node: doc.Node, depth: int) -> str:
    name = f"*{text(node.name)}*" if node.is_gate else code(node.name)
    notes = f": {text('; '.join(node.notes))}" if node.notes else ""
    line = f"{'  ' * depth}- {_MARKS[node.mark]} {text(node.title)} ({name}), {node.mark.replace('_', ' ')}{notes}\n"
    return line + "".join(_node(child, depth + 1) for child in node.children)
