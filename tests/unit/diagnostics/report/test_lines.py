"""A table as lines: aligned columns, a terminal's width, colours only where they are asked for."""

from diagnostics.report import document as doc
from diagnostics.report.lines import render


def table(**more: object) -> doc.Table:
    rows = (("one", "5", "short"), ("eleven", "1200", "x" * 100))
    return doc.Table(header=("run", "steps", "reason"), rows=rows, **more)  # type: ignore[arg-type]


def test_columns_are_aligned_and_numbers_to_the_right() -> None:
    head, first, second = render(table(), columns=None, colour=False).splitlines()
    assert head.index("steps") + len("steps") == first.index("5") + 1
    assert first.index("short") == second.index("x" * 100) == head.index("reason")


def test_a_narrow_terminal_loses_what_can_be_spared_and_a_pipe_gets_all() -> None:
    assert "reason" not in render(table(spare=(2,)), columns=40, colour=False)
    assert "x" * 100 in render(table(spare=(2,)), columns=None, colour=False)


def test_colours_change_no_text_and_control_characters_are_not_passed_on() -> None:
    coloured = render(table(), columns=None, colour=True)
    assert "\x1b[1mrun" in coloured and "\x1b" not in render(table(), columns=None, colour=False)
    uneven = doc.Table(header=("run",), rows=(("a\x1b[31mb",),))
    assert "\x1b" not in render(uneven, columns=None, colour=False)
