"""HTML elements: only what was built as markup is markup."""

from html.parser import HTMLParser

from hypothesis import given, settings, strategies as st

from diagnostics.report.markup import Markup, el, join
from tests.unit.diagnostics.report.samples import HOSTILE


class Reader(HTMLParser):
    """Collects tags, attributes and text as a browser sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[str | None] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


def test_an_element_has_its_attributes_and_children() -> None:
    markup = el("a", "see ", el("b", "this"), None, href="#main", class_="skip", data_copy=3, hidden=True, title=None)
    assert markup == '<a href="#main" class="skip" data-copy="3" hidden>see <b>this</b></a>'
    assert el("input", type="search", open=False) == '<input type="search">'
    assert el("br") == "<br>"


@given(st.text(max_size=30) | st.just(HOSTILE))
@settings(max_examples=80)
def test_text_and_attributes_never_become_markup(text: str) -> None:
    seen = read(el("p", text, title=text))
    assert seen.tags == ["p"] and len(seen.values) == 1
    assert read(join(text, Markup("<hr>"), text)).tags == ["hr"]
    assert seen.values[0] == seen.text or not text


def test_control_characters_are_made_visible() -> None:
    assert "\x1b" not in el("p", HOSTILE) and "\\x1b" in el("p", HOSTILE)
