"""Renders a document as one HTML page that needs no network: its style and script are inline, and its policy allows
nothing else. It opens from disk and works without its script.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from diagnostics.report import document as doc, svg
from diagnostics.report.markup import Markup, el, join

_NONE = Markup("")
_STATUSES = {"confirmed": "bad", "undecided": "warn", "ruled_out": "soft"}


def render(document: doc.Document, style: Markup = _NONE, script: Markup = _NONE) -> str:
    """Return the document as an HTML page.

    `style` follows the default rules; `script` replaces that of a report on a page that is served and refetches itself.
    """
    script_of_page = script or (_file("page.js") if document.interactive else None)
    badge, tone = document.badge
    names = ("Theme", "Print") if document.interactive else ()
    buttons = el("div", *(_button(name, id=name.lower()) for name in names)) if names else None
    header = el(
        "header",
        el("a", "Skip to the content", href="#main", class_="skip") if script_of_page else None,
        el(
            "div",
            el("div", el("span", badge, class_=f"badge {tone}") if badge else None, buttons, class_="bar"),
            el("h1", _inline(doc.capitalised(document.heading or document.answer))),
            *_blocks(document.lead),
        ),
    )
    footer = el("footer", document.footer) if document.footer else None
    end = el("script", script_of_page) if script_of_page else None
    body = el("body", header, el("main", *_blocks(document.blocks), footer, id="main"), end)
    head = _head(document.title, Markup(_file("page.css") + style), script_of_page, fetches=bool(script))
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def _head(title: str, style: Markup, script: Markup | None, *, fetches: bool) -> Markup:
    policy = f"default-src 'none'; style-src '{_hash(style)}'; "
    policy += f"script-src '{_hash(script)}'; " if script is not None else ""
    policy += "connect-src 'self'; " if fetches else ""
    policy += "base-uri 'none'; form-action 'none'"
    return el(
        "head",
        el("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("style", style),
    )


def _file(name: str) -> Markup:
    return Markup((Path(__file__).parent / name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _inline(text: doc.Text) -> Markup:
    parts: list[str] = []
    for span in doc.spans(text):
        if span.tone == "code":
            broken = Markup(join(span.text).replace("/", "/<wbr>"))  # A path breaks between its folders.
            element = el("code", broken) if span.text else Markup("")
            parts.append(el("a", element, href=span.href) if element and span.href else element)
        elif span.href:
            parts.append(el("a", span.text, href=span.href, class_=span.tone or None))
        else:
            parts.append(el("span", span.text, class_=span.tone) if span.tone else span.text)
    return join(*parts)


def _button(name: str, **attributes: str) -> Markup:
    return el("button", name, type="button", hidden=True, **attributes)


def _blocks(blocks: Sequence[doc.Block]) -> Iterable[Markup]:
    return [_block(block) for block in doc.shown(blocks, "html")]


def _block(block: doc.Block) -> Markup:
    match block:
        case doc.Paragraph():
            return el("p", _inline(block.text))
        case doc.Items():
            return el("ul", *(el("li", _inline(item)) for item in block.items), class_="plain")
        case doc.Fields():
            return el("dl", *(join(el("dt", row.label), el("dd", _inline(row.text))) for row in block.rows))
        case doc.Remedy():
            saves = el("div", f"saves {block.saves}", class_="soft") if block.saves else None
            change = el("div", el("code", block.change), el("div", block.why) if block.why else None, saves)
            copy = _button("Copy", data_copy=block.change, aria_label=f"Copy {block.change}")
            return el("div", change, copy, class_="fix")
        case doc.Table():
            return _table(block)
        case doc.Cards():
            sides = []
            for card in block.cards:
                lines = [el("div", _inline(line)) for line in card.lines]
                kind = "side marked" if card.marked else "side"
                sides.append(el("div", el("strong", card.title), *lines, class_=kind))
            return el("div", *sides, class_="sides")
        case doc.Tree():
            return el("div", _node(block.root), class_="tree")
        case doc.Bars():
            return svg.bars(block)
        case doc.Tracks():
            return svg.tracks(block)
        case doc.Plot():
            return svg.plot(block)
        case doc.Legend():
            return svg.legend(block.names, block.colours)
        case doc.Fold():
            return el("details", el("summary", block.title), *_blocks(block.blocks), open=block.is_open)
        case doc.Section():
            return _section(block)
        case _:
            raise TypeError(f"no form for {type(block).__name__}")


def _section(block: doc.Section) -> Markup:
    heading = el(f"h{block.level}", _inline(doc.capitalised(block.title)))
    if block.control == "open-all":
        heading = el("div", heading, _button("Open all", id="open-all"), class_="bar")
    elif block.control == "filter":
        label = "Filter the causes"
        field = el("input", type="search", id="filter", placeholder=label, aria_label=label, hidden=True)
        heading = join(heading, field)
    if block.level == 3:
        return join(heading, *_blocks(block.blocks))
    return el("section", heading, *_blocks(block.blocks), id=block.id or None, class_=block.kind or None)


def _table(block: doc.Table) -> Markup:
    numeric = ["number" if block.is_numeric(n) else None for n in range(len(block.header))]
    kinds = ["focus" if n == block.focus else kind for n, kind in enumerate(numeric)]
    head = [el("th", name, scope="col", class_=kind) for name, kind in zip(block.header, kinds, strict=True)]
    rows = [[doc.cell_of(cell) for cell in row] for row in block.rows]
    body = [
        el(
            "tr",
            *(
                el("th", _content(cell), scope="row", class_=cell.tone or None)
                if block.kind == "dense" and not n
                else el("td", _content(cell), class_=cell.tone or numeric[n], title=cell.hint or None)
                for n, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    heading = el("thead", el("tr", *head)) if any(block.header) else None
    table = el("table", heading, el("tbody", *body), class_=block.kind or None)
    return el("div", table, class_="scroll", tabindex="0" if block.kind == "dense" else None)


def _content(cell: doc.Cell) -> Markup:
    return join(_inline(cell.text), *(el("div", _inline(line)) for line in cell.below))


def _node(node: doc.Node) -> Markup:
    status = el("span", node.mark.replace("_", " "), class_=f"status {_STATUSES[node.mark]}")
    notes = el("span", ": " + ". ".join(node.notes), class_="soft") if node.notes else None
    if not node.is_gate:
        return el("div", el("div", status, " ", node.title, " ", el("code", node.name), notes), class_="leaf")
    hint = "all are needed" if node.name == "and" else "one is enough"
    summary = el("summary", status, " ", node.title, " ", el("span", node.name, class_="gate", title=hint), notes)
    return el("details", summary, *map(_node, node.children), open=node.is_open)
