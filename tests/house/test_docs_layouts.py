"""The tables of parity in docs/strategies.md have a row for every layout that the tests train, and no other."""

import re
from pathlib import Path

import pytest

from tests.dist.layouts import EXPERTS, LAYOUTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "strategies.md"
ROW = re.compile(r"\| (.+?) \| (\d) \| \d\.\de[-+]\d\d \| \d\.\de[-+]\d\d \|")


@pytest.mark.parametrize(("head", "layouts"), [("layout", LAYOUTS), ("layout of moe_tiny", EXPERTS)])
def test_every_layout_has_its_row(head, layouts):
    _, _, table = PAGE.read_text(encoding="utf-8").partition(f"\n| {head} | ranks |")
    rows = [match.groups() for line in table.partition("\n\n")[0].splitlines() if (match := ROW.fullmatch(line))]
    assert sorted(rows) == sorted((name, str(ranks)) for ranks, some in layouts.items() for name in some)
