"""The table before and after a remedy: what was measured under other terms is not compared."""

from pathlib import Path

import pytest

from diagnostics.findings import Remedy
from dtk.verify import Figures, Proof, _terms, table

REMEDY = Remedy("override", "fault=none", "it was planted")


def figures(tokens: float, terms: tuple[str, int | None]) -> Figures:
    return Figures("runs/a", "finished at step 8", (), tokens, None, None, terms)


@pytest.mark.parametrize(
    ("before", "after", "comparable"),
    [
        (("full", 8), ("full", 8), True),
        (("light", 8), ("full", 8), False),
        (("full", 20), ("full", 8), False),
        (("", None), ("", None), False),
    ],
)
def test_throughput_is_compared_under_the_same_terms(
    before: tuple[str, int | None], after: tuple[str, int | None], comparable: bool
) -> None:
    told = table(Proof("overlap.skew", REMEDY, figures(100.0, before), figures(250.0, after)))
    (line,) = (line for line in told.splitlines() if line.startswith("tokens/s"))
    assert line.split()[1:] == (["100.0", "250.0"] if comparable else ["not", "comparable", "not", "comparable"])


def test_the_terms_are_those_of_the_runs_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("record: {level: full}\ntrain: {steps: 8}\n")
    assert _terms(tmp_path) == ("full", 8)
    (tmp_path / "config.yaml").write_text("record: [")
    assert _terms(tmp_path) == ("", None)
