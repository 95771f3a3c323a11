"""Every way in which ranks disagree has a sentence, a remedy and a cause; every piece of evidence has a clause."""

import string
from typing import get_args

import pytest

from diagnostics.analysis.divergence.evidence_terms import Position, Support
from diagnostics.analysis.divergence.explanation import Kind
from diagnostics.causes.hang import _asymmetric
from diagnostics.causes.hang._asymmetric import CAUSES, remedy, unused_parameters
from diagnostics.causes.registry import built_in
from diagnostics.contract.files import table_beside

TABLE = table_beside(_asymmetric.__file__)


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_has_a_cause_a_sentence_and_a_remedy(kind: str) -> None:
    assert CAUSES[kind] in {cause.id for cause in built_in()}  # type: ignore[index]
    assert TABLE["summaries"][kind].endswith((".", "{hidden}"))
    change, why = TABLE["remedies"][kind]
    assert change and why and not fields(why), "a reason holds for every job"


def test_every_piece_of_evidence_has_a_clause() -> None:
    assert set(TABLE["because"]) == {*get_args(Support), *get_args(Position)}
    assert all(fields(text) <= {"count", "calls", "agree"} for text in TABLE["because"].values())


def test_a_remedy_is_filled_in() -> None:
    made = remedy("left_out", call="barrier", place="train.py:3")
    assert made.change == "call barrier at train.py:3 on all ranks of its group, or on none" and made.kind == "code"
    with pytest.raises(KeyError):
        remedy("left_out", call="barrier")


@pytest.mark.parametrize(("is_dtk_run", "kinds"), [(True, ["override", "code"]), (False, ["code"])])
def test_unused_parameters_have_an_override_in_a_run_of_dtk(is_dtk_run: bool, kinds: list[str]) -> None:
    made = unused_parameters(" (waits at train.py:3)", is_dtk_run=is_dtk_run)
    assert [one.kind for one in made] == kinds and made[-1].change.endswith("DDP (waits at train.py:3)")
