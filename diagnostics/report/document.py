"""The document model of every report, independent of the command that builds it and of the output format.

A builder turns a typed result into a `Document`; `terminal`, `markdown` and `html` render it. Texts may come from
evidence: each renderer escapes them at the one point where they enter it, so builders pass them as they are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil, floor, log as logarithm, log10
from typing import Literal

from msgspec import Struct

from diagnostics.contract.findings import Remedy as Remedy
from diagnostics.contract.formatting import sentence

Form = Literal["terminal", "markdown", "html"]
Tone = Literal["", "good", "bad", "warn", "soft", "strong", "code"]
"""Emphasis of a text: a colour on a terminal, a class on a page; `code` is also marked in Markdown."""
COLOURS = 10  # Number of distinct colours in charts.
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Digits of the distance between round values; each is at most twice the one before, so that two of them fit."""
_LEAST = 1e-300  # Values closer than this are equal.


class Span(Struct, frozen=True):
    """A piece of text with one tone."""

    text: str
    tone: Tone = ""
    elastic: bool = False
    """Whether its beginning may be cut if the line is too long, as for a path."""
    href: str = ""
    """Link target on a served page; other formats omit the link."""


Text = str | Span | tuple[str | Span, ...]


def spans(text: Text) -> tuple[Span, ...]:
    """Return the pieces of a text."""
    pieces = text if isinstance(text, tuple) else (text,)
    return tuple(Span(piece) if isinstance(piece, str) else piece for piece in pieces)


def plain(text: Text) -> str:
    """Return a text without tones."""
    return "".join(span.text for span in spans(text))


def capitalised(text: Text) -> tuple[Span, ...]:
    """Return a heading with a capital first letter, except for a name with the tone `code`."""
    first, *others = spans(text) or (Span(""),)
    return (first if first.tone == "code" else Span(sentence(first.text), first.tone), *others)


class Paragraph(Struct, frozen=True):
    """Sentences."""

    text: Text


class Field(Struct, frozen=True):
    """A labelled value."""

    label: str
    """Label; empty if the text continues the previous field."""
    text: Text
    tone: Tone = ""
    brief: Text = ""
    """A shorter text for terminals where `text` does not fit on one line; such a field is never wrapped."""
    beside_answer: bool = False
    """Whether a terminal prints it in brackets after the answer if there is room."""


class Fields(Struct, frozen=True):
    """Fields, one per line, with aligned texts."""

    rows: tuple[Field, ...]


class Items(Struct, frozen=True):
    """A list."""

    items: tuple[Text, ...]


class Cell(Struct, frozen=True):
    """A table cell with formatting."""

    text: Text
    tone: Tone = ""
    below: tuple[Text, ...] = ()
    """Further lines."""
    hint: str = ""
    """Tooltip."""


class Table(Struct, frozen=True):
    """Rows with headings."""

    header: tuple[str, ...]
    rows: tuple[tuple[Text | Cell, ...], ...]
    names: int | None = None
    """Number of text columns at the left; None for the first, and others according to their cells."""
    kind: Literal["", "records", "dense", "lines"] = ""
    """`records`: long texts, stacked on a narrow page. `dense`: many columns of short cells with background colours.
    `lines`: a line for each row, which is never folded."""
    focus: int | None = None
    """Column that a page scrolls to."""
    spare: tuple[int, ...] = ()
    """Columns that a narrow terminal omits, first to last."""

    def is_numeric(self, column: int) -> bool:
        """Return whether a column is numeric and right-aligned."""
        if self.names is not None:
            return column >= self.names
        cells = [plain(cell_of(row[column]).text).lstrip("<> ") for row in self.rows]
        return column > 0 and bool(cells) and all(cell[:1].isdigit() or cell == "-" for cell in cells)


def cell_of(value: Text | Cell) -> Cell:
    """Convert the content of a table cell to a `Cell`."""
    return value if isinstance(value, Cell) else Cell(value)


def table(rows: Sequence[Sequence[Text | Cell]], names: int | None = None) -> Table:
    """Return a table whose first row is the heading."""
    head, *body = rows
    return Table(tuple(plain(cell_of(cell).text) for cell in head), tuple(tuple(row) for row in body), names)


class Card(Struct, frozen=True):
    """One of several items to be compared."""

    title: str
    lines: tuple[Text, ...]
    marked: bool = False


class Cards(Struct, frozen=True):
    """Cards, side by side if there is room."""

    cards: tuple[Card, ...]


class Node(Struct, frozen=True):
    """A node of a tree."""

    mark: Literal["confirmed", "undecided", "ruled_out"]
    title: str
    name: str
    """Id, or the kind of a gate."""
    is_gate: bool = False
    notes: tuple[str, ...] = ()
    children: "tuple[Node, ...]" = ()
    is_open: bool = False
    brief: Text = ""
    """Text that a terminal prints after the name, instead of the notes."""
    folded: bool = False
    """Whether a terminal omits the children."""


class Tree(Struct, frozen=True):
    """A tree with a status for each node."""

    root: Node


class Bar(Struct, frozen=True):
    """One bar: its name, the sizes of its parts, and the text at its end."""

    name: str
    values: tuple[float, ...]
    texts: tuple[str, ...]
    """Formatted values."""
    end: str
    interval: tuple[float, float] | None = None
    """Interval drawn across the end of a bar with one part."""
    colour: int | None = None
    """Colour number of a bar with one part."""


class Bars(Struct, frozen=True):
    """Horizontal bars of stacked parts, all on one scale."""

    label: str
    bars: tuple[Bar, ...]
    parts: tuple[str, ...] = ("",)
    """Names of the parts; several parts have a legend."""
    colours: tuple[int, ...] | None = None
    """Colour number of each part; None for their order."""


class Legend(Struct, frozen=True):
    """Legend for the colours of several charts."""

    names: tuple[str, ...]
    colours: tuple[int, ...]


class Stretch(Struct, frozen=True):
    """A part of a track."""

    start: float
    end: float
    colour: str
    """`k0` to `k9`, or `h0` to `h5` from low to high."""
    hint: str
    """Tooltip."""
    thin: bool = False
    """Whether it is drawn at the upper edge, above other stretches."""


class Tracks(Struct, frozen=True):
    """Rows of stretches on one scale from 0: a timeline of ranks, or cells of a heat map."""

    label: str
    rows: tuple[tuple[str, tuple[Stretch, ...], str], ...]
    """Name, stretches, and the text at the end."""
    width: float
    """Length of the scale."""
    legend: Legend | None = None
    unit: str = ""
    """Unit of the scale; if set, the scale is labelled and zoomable on a page."""


class Dot(Struct, frozen=True):
    """A highlighted point."""

    x: float
    y: float
    hint: str
    """Tooltip."""
    interval: tuple[float, float] | None = None
    """Interval drawn as a vertical line through the point."""


class Curve(Struct, frozen=True):
    """Points joined by a line, or the area between them and a lower edge."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: int | Literal["ink", "reference"] = 0
    stroke: Literal["solid", "dashed", "dotted", "dash-dotted"] = "solid"
    strong: bool = False
    dots: tuple[Dot, ...] = ()
    lower: tuple[float, ...] = ()
    """Lower edge of an area, one value per point."""
    faint: bool = False


class Axis(Struct, frozen=True):
    """An axis of a plot."""

    text: Callable[[float], str]
    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()
    """Labelled values; without them the renderer chooses round ones for a vertical axis."""
    base: float = 10.0
    """Values are labelled in units of its powers: 1024 for bytes."""


class Mark(Struct, frozen=True):
    """A line across a plot, vertical (`x`) or horizontal (`y`); with both, a point and a vertical line."""

    text: str
    x: float | None = None
    y: float | None = None
    tone: Literal["limit", "step", "peak"] = "limit"
    hint: str = ""


class Plot(Struct, frozen=True):
    """Curves and areas with two axes."""

    label: str
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...] = ()
    legend: bool = True
    height: float = 300.0


class Fold(Struct, frozen=True):
    """Blocks that a page shows on request."""

    title: str
    blocks: "tuple[Block, ...]"
    is_open: bool = False


class Only(Struct, frozen=True):
    """Blocks for some output formats only."""

    forms: tuple[Form, ...]
    blocks: "tuple[Block, ...]"


class Section(Struct, frozen=True):
    """Blocks with a heading."""

    title: Text
    blocks: "tuple[Block, ...]"
    level: Literal[2, 3] = 2
    id: str = ""
    """Anchor for links and scripts of the page."""
    kind: Literal["", "cause"] = ""
    control: Literal["", "open-all", "filter"] = ""
    """Control that the page's script adds here."""


Block = (
    Paragraph | Fields | Items | Remedy | Table | Cards | Tree | Bars | Tracks | Plot | Legend | Fold | Only | Section
)


class Document(Struct, frozen=True):
    """A complete report."""

    title: str
    """Title of the window."""
    answer: Text
    """First line in text formats."""
    blocks: tuple[Block, ...]
    badge: tuple[str, Tone] = ("", "")
    """The answer in one or two words, at the top of the page."""
    heading: Text = ""
    """Heading of the page; default: the answer."""
    prelude: tuple[Block, ...] = ()
    """Blocks above the answer in text formats."""
    lead: tuple[Block, ...] = ()
    """Blocks directly below the answer."""
    footer: str = ""
    """Footer of the page."""
    interactive: bool = False
    """Whether the page has its script: theme, printing, keyboard navigation of trees, copying."""


def present(*blocks: Block | Iterable[Block] | None) -> tuple[Block, ...]:
    """Return the blocks without None, with iterables of blocks flattened."""
    shown: list[Block] = []
    for block in blocks:
        if isinstance(block, Iterable):
            shown += block
        elif block is not None:
            shown.append(block)
    return tuple(shown)


def remark(text: str) -> Paragraph:
    """Return a soft paragraph that explains a drawing or table."""
    return Paragraph(Span(text, "soft"))


def on_page(*blocks: Block) -> Only:
    """Return blocks for the page only: drawings, and their explanations."""
    return Only(("html",), blocks)


def shown(blocks: Sequence[Block], form: Form) -> Iterator[Block]:
    """Yield the blocks for an output format, with the content of matching `Only` blocks inline."""
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
    """Return an axis that includes all values.

    `room` extends it beyond the outermost values: by a factor on a logarithmic axis, else by `room` - 1 of their
    distance on each side. `base` as in `Axis`.
    """
    low, high = min(all_values := list(values)), max(all_values)
    if log:
        return Axis(text, low / room, high * room, log, tuple(ticks), base)
    margin = ((high - low) or abs(high) or 1.0) * (room - 1.0)
    return Axis(text, low - margin, high + margin, log, tuple(ticks), base)


def round_values(low: float, high: float, most: int, base: float = 10.0) -> list[float]:
    """Return 2 to `most` + 1 round values from `low` to `high`, or `low` alone if both are equal.

    `most` (at least 4) is the maximum number of steps between them; `base` as in `Axis`.
    """
    if not high - low > _LEAST:
        return [low]
    largest = max(abs(low), abs(high))
    unit = base ** floor(logarithm(largest, base)) if base != 10 and largest >= 1 else 1.0
    step = (high - low) / most / unit
    power = 10.0 ** floor(log10(step))
    step = unit * power * next(digit for digit in _ROUND if digit * power >= step * (1 - 1e-9))
    return [n * step for n in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
