"""The table of strategies: every strategy and dimension, whole cells in any width."""

import pytest

from dtk.commands.strategies import render
from dtk.sharding.registry import CONFIG_TYPES


@pytest.mark.parametrize("columns", [30, 60, 119, 120, 200])
def test_every_row_is_there_and_fits(columns: int) -> None:
    text = render(columns=columns)
    assert all(name in text for name in (*CONFIG_TYPES, "parallel.tp=t", "parallel.pp=p", "parallel.ep=x"))
    longest_label = len("  sent per rank and step ") + 20
    assert max(map(len, text.splitlines())) <= max(columns, longest_label)


def test_narrow_text_has_what_the_wide_table_leaves_out() -> None:
    narrow = render(columns=80)
    assert "use when" in narrow and CONFIG_TYPES["ddp"].use_when in narrow
    assert "use when" not in render()


def test_markdown_is_a_table() -> None:
    lines = render(in_markdown=True).splitlines()
    assert len({line.count("|") for line in lines}) == 1 and len(lines) == 2 + len(CONFIG_TYPES) + 5
    assert lines[1] == "|" + " --- |" * 6
