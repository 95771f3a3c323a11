"""Any document renders in every form, and no text of it becomes markup or a command to the terminal."""

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from diagnostics.report import html, markdown, terminal
from diagnostics.report.document import (
    Axis,
    Bar,
    Bars,
    Card,
    Cards,
    Cell,
    Curve,
    Document,
    Dot,
    Field,
    Fields,
    Fold,
    Items,
    Legend,
    Mark,
    Node,
    Only,
    Paragraph,
    Plot,
    Remedy,
    Section,
    Span,
    Table,
    Tree,
    capitalised,
    plain,
    present,
    shown,
    table,
)
from tests.unit.diagnostics.report.samples import HOSTILE

TONES = ("", "good", "bad", "warn", "soft", "strong", "code")
names = st.one_of(st.text(max_size=40), st.just(HOSTILE), st.just("`|\x1b[2J<b>"))
spans = st.builds(Span, names, st.sampled_from(TONES), st.booleans())
texts = st.one_of(names, spans, st.lists(st.one_of(names, spans), min_size=1, max_size=3).map(tuple))
sizes = st.floats(0, 1e12)


def several(values: st.SearchStrategy, least: int = 0, most: int = 3) -> st.SearchStrategy:
    return st.lists(values, min_size=least, max_size=most).map(tuple)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    width = draw(st.integers(1, 4))
    cell = st.one_of(texts, st.builds(Cell, texts, st.sampled_from(TONES), several(texts), names))
    rows = draw(several(st.tuples(*[cell] * width)))
    kind = draw(st.sampled_from(("", "records", "dense")))
    return Table(draw(st.tuples(*[names] * width)), rows, draw(st.none() | st.integers(0, width)), kind)


@st.composite
def bars(draw: st.DrawFn) -> Bars:
    parts = draw(several(names, 1))
    values = st.tuples(*[sizes] * len(parts))
    bar = st.builds(Bar, names, values, st.tuples(*[names] * len(parts)), names, st.none() | st.tuples(sizes, sizes))
    return Bars(draw(names), draw(several(bar)), parts)


@st.composite
def plots(draw: st.DrawFn) -> Plot:
    log = draw(st.booleans())
    low, high = (1.0, draw(st.floats(1.5, 1e9))) if log else (0.0, draw(st.floats(0.1, 1e12)))
    inside = st.floats(low, high)
    points = st.tuples(inside, inside)
    dots = several(st.builds(Dot, inside, inside, names, st.none() | points))
    curve = st.builds(Curve, names, several(points, 1), st.integers(0, 20) | st.just("ink"), dots=dots)
    mark = st.builds(Mark, names, st.none() | inside, inside, st.sampled_from(("limit", "step", "peak")), names)
    axis = Axis(lambda value: f"{value:.3g}{HOSTILE}", low, high, log, draw(several(inside)))
    return Plot(draw(names), axis, axis, draw(several(curve)), draw(several(mark)))


marks = st.sampled_from(("confirmed", "undecided", "ruled_out"))
leaves = st.builds(Node, marks, names, names, st.just(False), several(names), brief=texts)
nodes = st.recursive(
    leaves,
    lambda inner: st.builds(Node, marks, names, names, st.just(True), several(names), several(inner)),
    max_leaves=6,
)
simple = st.one_of(
    st.builds(Paragraph, texts),
    st.builds(Fields, several(st.builds(Field, names, texts, st.sampled_from(TONES), texts, st.booleans()))),
    st.builds(Items, several(texts)),
    st.builds(Remedy, st.sampled_from(("override", "code", "environment")), names, names, names),
    tables(),
    st.builds(Cards, several(st.builds(Card, names, several(texts), st.booleans()))),
    st.builds(Tree, nodes),
    bars(),
    plots(),
    st.builds(Legend, st.just(("a", HOSTILE)), st.just((0, 1))),
)
blocks = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(Fold, names, several(inner), st.booleans()),
        st.builds(Only, several(st.sampled_from(("terminal", "markdown", "html")), 1), several(inner)),
        st.builds(Section, texts, several(inner), st.sampled_from((2, 3))),
    ),
    max_leaves=6,
)
documents = st.builds(
    Document,
    title=names,
    answer=texts,
    blocks=several(blocks),
    badge=st.tuples(names, st.sampled_from(TONES)),
    prelude=several(st.builds(Paragraph, texts)),
    lead=several(blocks),
    footer=names,
    interactive=st.booleans(),
)


class Tags(HTMLParser):
    """Collects the names of elements and attributes, and checks that every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[tuple[str, str]] = set()
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen |= {(tag, name) for name, _ in attributes} | {(tag, "")}
        if tag not in ("meta", "input", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(documents)
def test_any_document_has_a_page_in_which_texts_are_not_markup(document: Document) -> None:
    tags = Tags(html.render(document)).seen
    assert not {tag for tag, _ in tags} & {"img", "iframe", "b", "link"}
    assert not [name for _, name in tags if name.startswith("on") or name in ("src", "style")]
    assert html.render(document).count("<script") == document.interactive


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(documents, st.sampled_from((None, 40, 120)))
def test_any_document_is_plain_text_in_a_terminal(document: Document, columns: int | None) -> None:
    text = terminal.render(document, columns=columns, colour=False)
    assert all(character.isprintable() for line in text.split("\n") for character in line)
    assert not re.search(r" $", text, re.MULTILINE)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(documents)
def test_any_document_is_markdown_without_markup_of_its_texts(document: Document) -> None:
    text = markdown.render(document)
    outside = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert not re.search(r"(?<!\\)(?:\\\\)*<", outside)
    assert all(character.isprintable() for line in text.split("\n") for character in line)


def test_fields_that_follow_each_other_are_aligned_and_fold_beside_their_label() -> None:
    rows = (Fields((Field("a", "x " * 30),)), Fields((Field("a longer label", "y", "good"),)))
    lines = terminal.render(Document("", "answer", rows), columns=50, colour=False).splitlines()
    assert lines[0] == "answer" and lines[-1] == "a longer label y"
    assert [line[:15].strip() for line in lines[1:-1]] == ["a", *[""] * (len(lines) - 3)]
    assert all(line[15:].startswith("x") for line in lines[1:-1])


@pytest.mark.parametrize(("columns", "expected"), [(None, "whole"), (60, "whole"), (29, "short"), (24, "...")])
def test_what_has_no_room_is_shown_in_its_brief_form_and_a_path_loses_its_beginning(columns, expected) -> None:
    path = Span("/home/me/a.py", elastic=True)
    row = Field("where", (path, ":3, whole"), brief=(path, ":3 short") if columns == 29 else (path, ":123456"))
    (line,) = terminal.render(Document("", "", (Fields((row,)),)), columns=columns, colour=False).splitlines()
    assert expected in line and (columns is None or len(line) <= columns)


def test_an_aside_stands_behind_the_answer_only_where_there_is_room() -> None:
    document = Document("", "an answer", (), lead=(Fields((Field("cause", "its id", beside_answer=True),)),))
    assert terminal.render(document, columns=80, colour=False) == "an answer [its id]\n"
    assert terminal.render(document, columns=16, colour=False) == "an answer\ncause   its id\n"


def test_columns_of_figures_are_flush_right() -> None:
    result = table([("name", "size"), ("a", "> 5 s"), ("b", "-"), ("c", "12.5 s")])
    assert [result.is_numeric(n) for n in range(2)] == [False, True]
    assert not table([("name", "size"), ("a", "x")]).is_numeric(1) and not table([("name",)]).is_numeric(0)
    lines = terminal.render(Document("", "", (result,)), columns=40, colour=False).splitlines()
    assert [len(line) for line in lines] == [len(lines[0])] * 4


def test_forms_have_only_what_is_for_them() -> None:
    inner = Only(("html",), (Paragraph("page"), Only(("markdown",), (Paragraph("nowhere"),))))
    result = (Paragraph("all"), inner, Only(("terminal", "markdown"), (Paragraph("text"),)))
    assert [plain(block.text) for block in shown(result, "html") if isinstance(block, Paragraph)] == ["all", "page"]
    assert [plain(block.text) for block in shown(result, "markdown") if isinstance(block, Paragraph)] == ["all", "text"]
    assert present(None, Paragraph("a"), [Paragraph("b")]) == (Paragraph("a"), Paragraph("b"))


def test_headings_have_a_capital_and_names_stay_as_they_are_typed() -> None:
    assert plain(capitalised(("many buckets ", Span("overlap.x", "code")))) == "Many buckets overlap.x"
    assert plain(capitalised("worldwide ranks")) == "Worldwide ranks"
    assert plain(capitalised((Span("gpt2", "code"), " on 2 ranks"))) == "gpt2 on 2 ranks"
    assert plain(capitalised("")) == ""


def test_bars_are_as_long_as_their_values_and_intervals_are_drawn_across_them() -> None:
    bars = Bars("speed", (Bar("a", (200.0,), ("200",), "200"), Bar("b", (50.0,), ("50",), "50", (40.0, 100.0), 3)))
    page = html.render(Document("", "", (bars,)))
    assert re.findall(r'width="([\d.]+)%" height="17" class="(k\d)"', page) == [("100.00", "k0"), ("25.00", "k3")]
    assert '<line x1="20.00%" x2="50.00%"' in page and page.count('class="whisker"') == 3


def test_a_logarithmic_axis_has_round_values_equally_far_apart() -> None:
    axis = Axis(lambda value: f"{value:g} GB/s", 0.9, 1.1e6, log=True)
    page = html.render(Document("", "", (Plot("p", axis, axis, (Curve("c", ((1.0, 1.0),)),)),)))
    heights = [float(y) for y in re.findall(r'y1="([\d.]+)"[^>]*class="grid"', page)]
    assert re.findall(r">(\S+) GB/s<", page) == ["1", "10", "100", "1000", "10000", "100000", "1e+06"]
    apart = [low - high for low, high in pairwise(heights)]
    assert max(apart) - min(apart) < 0.2
