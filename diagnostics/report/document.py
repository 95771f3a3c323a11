"""The document model of every report, independent of the command that builds it and the form it is shown in.

A builder turns a typed result into a `Document`; `terminal`, `markdown` and `html` render it. Texts may come from
evidence: each renderer escapes them at the one point where they enter it, so builders pass them as they are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil, floor, log10
from math import log as logarithm
from typing import Literal

from msgspec import Struct

from diagnostics.contract.findings import Remedy as Remedy
from diagnostics.contract.formatting import sentence

Form = Literal["terminal", "markdown", "html"]
Tone = Literal["", "good", "bad", "warn", "soft", "strong", "code"]
"""How a text is emphasised: a colour in a terminal, a class on a page; `code` is also marked in Markdown."""
COLOURS = 10
"""Colours that charts tell apart."""
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Digits of the distance between round values; each is at most twice the one before, so that two of them fit."""
_QUARTERS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""The same of an axis that is cut into four: finer, so that little of it stays empty."""
_LEAST = 1e-300
"""Below this, values are the same."""


class Span(Struct, frozen=True):
    """A piece of text in one tone."""

    text: str
    tone: Tone = ""
    elastic: bool = False
    """Whether it may lose its beginning where the line has no room: a path."""
    href: str = ""
    """Where it leads on a page that is served; other forms leave the link out."""


Text = str | Span | tuple[str | Span, ...]


def spans(text: Text) -> tuple[Span, ...]:
    """Return the pieces of a text."""
    pieces = text if isinstance(text, tuple) else (text,)
    return tuple(Span(piece) if isinstance(piece, str) else piece for piece in pieces)


def plain(text: Text) -> str:
    """Return a text without its tones."""
    return "".join(span.text for span in spans(text))


def capitalised(text: Text) -> tuple[Span, ...]:
    """Return a heading with a capital at its beginning; a name in the tone `code` stays as it is typed."""
    first, *others = spans(text) or (Span(""),)
    return (first if first.tone == "code" else Span(sentence(first.text), first.tone), *others)


class Paragraph(Struct, frozen=True):
    """Sentences."""

    text: Text


class Field(Struct, frozen=True):
    """A value with its name."""

    label: str
    """Empty: the text continues the field above."""
    text: Text
    tone: Tone = ""
    brief: Text = ""
    """A shorter text for a terminal in which `text` does not fit on one line; with it, the line is never folded."""
    beside_answer: bool = False
    """Whether a terminal shows it in brackets behind the answer where that has room."""


class Fields(Struct, frozen=True):
    """Fields below each other, their texts aligned."""

    rows: tuple[Field, ...]


class Items(Struct, frozen=True):
    """A list."""

    items: tuple[Text, ...]


class Cell(Struct, frozen=True):
    """A cell that has more than its text."""

    text: Text
    tone: Tone = ""
    """Of the whole cell."""
    below: tuple[Text, ...] = ()
    """Further lines."""
    hint: str = ""
    """What a pointer over it shows."""


class Table(Struct, frozen=True):
    """Rows under headings."""

    header: tuple[str, ...]
    rows: tuple[tuple[Text | Cell, ...], ...]
    names: int | None = None
    """Columns of text at the left, the others being figures; None: the first, and others by what their cells hold."""
    kind: Literal["", "records", "dense"] = ""
    """`records`: long texts, stacked where a page is narrow. `dense`: many columns of short cells, coloured whole."""
    focus: int | None = None
    """Column that a page scrolls to."""

    def is_numeric(self, column: int) -> bool:
        """Whether a column holds figures and is flush right."""
        if self.names is not None:
            return column >= self.names
        cells = [plain(cell_of(row[column]).text).lstrip("<> ") for row in self.rows]
        return column > 0 and bool(cells) and all(cell[:1].isdigit() or cell == "-" for cell in cells)


def cell_of(value: Text | Cell) -> Cell:
    """Return the cell of a table as a `Cell`."""
    return value if isinstance(value, Cell) else Cell(value)


def table(rows: Sequence[Sequence[Text | Cell]], names: int | None = None) -> Table:
    """Return a table of rows whose first is the heading."""
    head, *body = rows
    return Table(tuple(plain(cell_of(cell).text) for cell in head), tuple(tuple(row) for row in body), names)


class Card(Struct, frozen=True):
    """One of several things to be compared."""

    title: str
    lines: tuple[Text, ...]
    marked: bool = False


class Cards(Struct, frozen=True):
    """Things beside each other where there is room."""

    cards: tuple[Card, ...]


class Node(Struct, frozen=True):
    """A node of a tree."""

    mark: Literal["confirmed", "undecided", "ruled_out"]
    title: str
    name: str
    """Its id, or the kind of a gate."""
    is_gate: bool = False
    notes: tuple[str, ...] = ()
    children: "tuple[Node, ...]" = ()
    is_open: bool = False
    brief: Text = ""
    """What a terminal shows behind the name, in place of the notes."""
    folded: bool = False
    """Whether a terminal leaves out the children."""


class Tree(Struct, frozen=True):
    """A tree with a status for each node."""

    root: Node


class Bar(Struct, frozen=True):
    """One bar: its name, the sizes of its parts, and what stands at its end."""

    name: str
    values: tuple[float, ...]
    texts: tuple[str, ...]
    """Each value in words."""
    end: str
    interval: tuple[float, float] | None = None
    """Drawn across the end of a bar of one part."""
    colour: int | None = None
    """Number of the colour of a bar of one part."""


class Bars(Struct, frozen=True):
    """Horizontal bars of stacked parts, all on one scale."""

    label: str
    bars: tuple[Bar, ...]
    parts: tuple[str, ...] = ("",)
    """Names of the parts; with more than one there is a legend."""
    colours: tuple[int, ...] | None = None
    """Number of the colour of each part; None: their order."""


class Legend(Struct, frozen=True):
    """Names of the colours of several charts."""

    names: tuple[str, ...]
    colours: tuple[int, ...]


class Stretch(Struct, frozen=True):
    """A part of a track."""

    start: float
    end: float
    colour: str
    """`k0` to `k8`, or `h0` to `h5`: from little to much."""
    hint: str
    """What a pointer over it shows."""
    thin: bool = False
    """Whether it stands at the upper edge, above what else is there."""


class Tracks(Struct, frozen=True):
    """Rows of stretches, all on one scale from 0: a timeline of ranks, or cells of a heat map."""

    label: str
    rows: tuple[tuple[str, tuple[Stretch, ...], str], ...]
    """Name, stretches, and what stands at the end."""
    width: float
    """Of the scale."""
    legend: Legend | None = None
    unit: str = ""
    """Of the scale, which is then written below, and which a page can zoom into."""


class Dot(Struct, frozen=True):
    """A point that stands out of its curve."""

    x: float
    y: float
    hint: str
    """What a pointer over it shows."""
    interval: tuple[float, float] | None = None
    """Drawn upright through it."""


class Curve(Struct, frozen=True):
    """Points joined by a line, or the area between them and a lower edge."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: int | Literal["ink", "reference"] = 0
    stroke: Literal["solid", "dashed", "dotted", "dash-dotted"] = "solid"
    strong: bool = False
    dots: tuple[Dot, ...] = ()
    lower: tuple[float, ...] = ()
    """Lower edge of an area, one value for each point."""
    faint: bool = False


class Axis(Struct, frozen=True):
    """Values along one side of a plot."""

    text: Callable[[float], str]
    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()
    """Values that are written; of a vertical axis without ticks the renderer chooses round ones."""
    base: float = 10.0
    """Values are written in units of its powers: 1024 for bytes."""


class Mark(Struct, frozen=True):
    """A line across a plot, upright (`x`) or level (`y`); with both, a point and an upright line."""

    text: str
    x: float | None = None
    y: float | None = None
    tone: Literal["limit", "step", "peak"] = "limit"
    hint: str = ""


class Plot(Struct, frozen=True):
    """Curves and areas over two axes."""

    label: str
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...] = ()
    legend: bool = True
    height: float = 300.0


class Fold(Struct, frozen=True):
    """Blocks that a page shows on demand."""

    title: str
    blocks: "tuple[Block, ...]"
    is_open: bool = False


class Only(Struct, frozen=True):
    """Blocks that some forms do not have."""

    forms: tuple[Form, ...]
    blocks: "tuple[Block, ...]"


class Section(Struct, frozen=True):
    """Blocks under a heading."""

    title: Text
    blocks: "tuple[Block, ...]"
    level: Literal[2, 3] = 2
    id: str = ""
    """For links and scripts of the page."""
    kind: Literal["", "cause"] = ""
    control: Literal["", "open-all", "filter"] = ""
    """What the page's script offers here."""


Block = (
    Paragraph | Fields | Items | Remedy | Table | Cards | Tree | Bars | Tracks | Plot | Legend | Fold | Only | Section
)


class Document(Struct, frozen=True):
    """A whole report."""

    title: str
    """Of the window."""
    answer: Text
    """First line of the text forms."""
    blocks: tuple[Block, ...]
    badge: tuple[str, Tone] = ("", "")
    """The answer in a word or two, at the top of the page."""
    heading: Text = ""
    """Of the page; default: the answer."""
    prelude: tuple[Block, ...] = ()
    """What the text forms say above the answer."""
    lead: tuple[Block, ...] = ()
    """What stands directly below the answer."""
    footer: str = ""
    """Of the page."""
    interactive: bool = False
    """Whether the page has its script: theme, printing, trees by keyboard, copying."""


def present(*blocks: Block | Iterable[Block] | None) -> tuple[Block, ...]:
    """Return the blocks without those that are None; iterables of blocks are taken apart."""
    shown: list[Block] = []
    for block in blocks:
        if isinstance(block, Iterable):
            shown += block
        elif block is not None:
            shown.append(block)
    return tuple(shown)


def remark(text: str) -> Paragraph:
    """Return a soft paragraph: how a drawing or table is to be read."""
    return Paragraph(Span(text, "soft"))


def on_page(*blocks: Block) -> Only:
    """Return blocks that only the page has: drawings, and what explains them."""
    return Only(("html",), blocks)


def shown(blocks: Sequence[Block], form: Form) -> Iterator[Block]:
    """Yield the blocks that a form has, with those inside `Only` in its place."""
    for block in blocks:
        if not isinstance(block, Only):
            yield block
        elif form in block.forms:
            yield from shown(block.blocks, form)


def axis(
    text: Callable[[float], str],
    values: Iterable[float],
    *,
    log: bool = False,
    room: float = 1.0,
    ticks: Iterable[float] = (),
    base: float = 10.0,
) -> Axis:
    """Return an axis that holds all values.

    Args:
        text: a value in words.
        values: at least one; on a logarithmic axis above 0.
        log: logarithmic.
        room: beyond the outermost values: a factor on a logarithmic axis, else 1 + the share of their distance.
        ticks: values that are written.
        base: as in `Axis`.
    """
    low, high = min(all_values := list(values)), max(all_values)
    if log:
        return Axis(text, low / room, high * room, log, tuple(ticks), base)
    margin = ((high - low) or abs(high) or 1.0) * (room - 1.0)
    return Axis(text, low - margin, high + margin, log, tuple(ticks), base)


def round_above(width: float) -> float:
    """Return the least width above 0 and not below `width` whose quarters are round values."""
    power = 10.0 ** floor(log10(max(width, _LEAST) / 4))
    return 4 * power * next(digit for digit in _QUARTERS if 4 * digit * power >= width * (1 - 1e-9))


def round_values(low: float, high: float, most: int, base: float = 10.0) -> list[float]:
    """Return at least two round values from `low` to `high`, at most `most` + 1; of equal ends that one.

    Args:
        low: lower end.
        high: upper end.
        most: steps between the values, 4 or more.
        base: as in `Axis`.
    """
    if not high - low > _LEAST:
        return [low]
    largest = max(abs(low), abs(high))
    unit = base ** floor(logarithm(largest, base)) if base != 10 and largest >= 1 else 1.0
    step = (high - low) / most / unit
    power = 10.0 ** floor(log10(step))
    step = unit * power * next(digit for digit in _ROUND if digit * power >= step * (1 - 1e-9))
    return [n * step for n in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
