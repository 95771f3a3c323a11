"""How lists of runs look in a terminal: columns that fit, and no control character."""

import json
import re

import pytest
from rich.style import Style

from diagnostics.report import document as doc, lines, terminal
from diagnostics.report.runs import listing, listing_json
from diagnostics.runs.find import Run

RUNS = [
    Run("first", "runs/first", "finished", step=120, loss=1.23456, tokens_per_s=123456.7, age_s=90.0),
    Run("second\x1b[31m", "runs/second", "hung"),
]


def test_a_listing_has_a_heading_and_a_line_for_each_run() -> None:
    heading, first, second = lines.render(listing(RUNS), columns=None, colour=False).splitlines()
    assert heading.split() == ["run", "state", "steps", "loss", "tokens/s", "age"]
    assert first.split() == ["first", "finished", "120", "1.2346", "123,457", "2m"]
    assert second.split() == ["second\\x1b[31m", "hung", "-", "-", "-", "-"]
    assert len({line.index(word) for line, word in ((heading, "state"), (first, "finished"), (second, "hung"))}) == 1


@pytest.mark.parametrize(
    ("columns", "heading"),
    [
        (200, "run state steps loss tokens/s age"),
        (50, "run state steps loss age"),
        (38, "run state steps age"),
        (10, "run state age"),
    ],
)
def test_a_narrow_terminal_does_without_figures(columns: int, heading: str) -> None:
    shown = lines.render(listing(RUNS), columns=columns, colour=False).splitlines()
    assert shown[0].split() == heading.split()
    assert columns < 30 or all(len(line) <= columns for line in shown)


def test_only_the_state_is_coloured_and_the_heading_is_bold() -> None:
    plain, coloured = (lines.render(listing(RUNS), columns=None, colour=colour) for colour in (False, True))
    assert re.sub(r"\x1b\[[\d;]+m", "", coloured).split() == plain.split()
    assert coloured.startswith("\x1b[1mrun")
    assert "\x1b[32mfinished" in coloured and "\x1b[1;31mhung" in coloured


def test_a_long_name_shifts_its_own_row_only() -> None:
    long = Run("x" * 100, "runs/x", "finished", age_s=5.0)
    heading, first, other = lines.render(listing([long, RUNS[0]]), columns=None, colour=False).splitlines()
    assert heading.index("state") == other.index("finished") == 74 < first.index("finished")


def test_json_forms_can_be_read_back() -> None:
    assert [item["id"] for item in json.loads(listing_json(RUNS))] == ["first", "second\x1b[31m"]
    assert json.loads(listing_json([])) == []


def test_a_document_shows_the_same_lines_in_the_same_colours() -> None:
    whole = doc.Document("", "", (listing(RUNS),))
    for columns, colour in ((200, False), (38, True), (None, True)):
        own = lines.render(listing(RUNS), columns=columns, colour=colour)
        assert terminal.render(whole, columns=columns, colour=colour) == own
    of_rich = {tone: Style.parse(style).render("x") for tone, style in terminal._STYLES.items()}
    assert of_rich == {tone: f"\x1b[{code}mx\x1b[0m" for tone, code in lines.CODES.items()}
