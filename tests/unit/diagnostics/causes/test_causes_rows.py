"""The rows that causes name exist, and get every figure that they show."""

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnostics import causes
from diagnostics.contract.files import read_table, table_beside
from diagnostics.contract.findings import LEVEL

ROOT = Path(causes.__file__).parent
MODULES = sorted(path for path in ROOT.glob("*/*.py") if "Texts(__file__)" in path.read_text(encoding="utf-8"))
CALLS = {"facts": "default", "ruled_out": "none", "undecided": "open", "phrase": "", "remedy": ""}
"""Method of `Texts` -> the row that it takes where none is named."""
ALWAYS = {"finding", "ranks", "victims", "cost"}
"""Figures that every text of a finding may show; `cost` is filled in by the causes of a slow step."""


def texts_of(row: Any) -> Iterator[str]:
    """Yield every text in a row."""
    if isinstance(row, str):
        yield row
    for value in row.values() if isinstance(row, dict) else row if isinstance(row, list) else ():
        yield from texts_of(value)


def figures_of(row: Any) -> set[str]:
    """Return the names of the figures that a row shows."""
    fields = [name for text in texts_of(row) for _, name, _, _ in string.Formatter().parse(text) if name]
    return {name.split(".")[0].split("[")[0] for name in fields}


def named(source: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each row that a module takes from its own texts by name, with the figures that it gives it."""
    name = re.search(r"(\w*TEXTS)\b[^=\n]* = [^\n]*Texts\(__file__\)", source)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in CALLS:
            continue
        own = isinstance(node.func.value, ast.Name) and name and node.func.value.id == name[1]
        if not own or any(keyword.arg is None for keyword in node.keywords):
            continue
        first = node.args[0] if node.args else ast.Constant(CALLS[node.func.attr])
        rows = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
        for row in rows:
            if isinstance(row, ast.Constant) and isinstance(row.value, str):
                yield row.value, {str(keyword.arg) for keyword in node.keywords}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_every_row_that_is_named_exists_and_gets_its_figures(module: Path) -> None:
    table = table_beside(str(module))["texts"]
    for name, given in named(module.read_text(encoding="utf-8")):
        row, _, key = name.partition(".")
        assert row in table, f"{module.name}: there is no row {row}"
        lacks = figures_of(table[row][key] if key else table[row]) - given - ALWAYS
        assert not lacks, f"{module.name}: the row {name} shows {lacks}, which it does not get"


def test_what_a_row_shows_is_found() -> None:
    assert figures_of({"summary": "{a.b} {c[d]:bytes}", "remedies": [{"change": "{e:x|y}"}]}) == {"a", "c", "e"}
    assert [*named('_TEXTS = Texts(__file__)\nx = _TEXTS.phrase("p" if a else "q", b=1)\ny = _TEXTS.undecided()')] == [
        ("p", {"b"}),
        ("q", {"b"}),
        ("open", set()),
    ]


def test_a_table_names_levels_of_confidence_that_exist() -> None:
    tables = [table for path in ROOT.glob("*/*.yaml") if isinstance(table := read_table(path), dict)]
    rows = [row for table in tables for row in (*table.get("cases", ()), *table.get("reasons", {}).values())]
    named = {row["confidence"] for row in rows if "confidence" in row}
    assert named <= LEVEL.keys() and len(named) > 3
