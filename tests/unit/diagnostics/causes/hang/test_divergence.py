"""Every way in which ranks disagree is read by one cause, with words of its own; each clue has a clause."""

import string
from typing import get_args

import pytest

from diagnostics.analysis.divergence.evidence_terms import Position, Support
from diagnostics.analysis.divergence.explanation import Kind
from diagnostics.causes.hang import (
    _divergence,
    collective_mismatch,
    conditional_collective,
    signature_mismatch,
    uneven_iterations,
    unused_parameters,
)
from diagnostics.causes.hang._divergence import Reading, fix_call
from diagnostics.contract.files import table_beside
from tests.unit.diagnostics.analysis.calls import call

BECAUSE = table_beside(_divergence.__file__)["because"]
READINGS = [
    module.READING
    for module in (
        collective_mismatch, conditional_collective, signature_mismatch, uneven_iterations, unused_parameters
    )
]  # fmt: skip


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_kind_is_read_by_one_cause() -> None:
    kinds = [kind for reading in READINGS for kind in reading.kinds]
    assert sorted(kinds) == sorted(get_args(Kind))


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.kinds[0])
def test_why_it_is_not_this_cause_can_be_filled_in(reading: Reading) -> None:
    assert "not_this" in reading.texts
    for row in ("not_this", "not_this_either"):
        text = reading.texts.phrase(row).text if row in reading.texts else "."
        assert fields(text) <= {"why", "at", "op"} and text.endswith(".")


def test_every_piece_of_evidence_has_a_clause() -> None:
    assert set(BECAUSE) == {*get_args(Support), *get_args(Position)}
    assert all(fields(text) <= {"count"} for text in BECAUSE.values())


def test_a_call_on_some_ranks_is_made_on_all_or_none() -> None:
    result, other = call(1, 3), call(1, 5)
    left_out, added = fix_call(result, other), fix_call(result, other, added=True)
    assert left_out.change == f"call {result.text} at /job/train.py:3 on all ranks of its group, or on none"
    assert added.change == f"make /job/train.py:3 unconditional, so that all ranks or none call {result.text}"


@pytest.mark.parametrize(("is_dtk_run", "kinds"), [(True, ["override", "code"]), (False, ["code"])])
def test_unused_parameters_have_an_override_in_a_run_of_dtk(is_dtk_run: bool, kinds: list[str]) -> None:
    remedies = unused_parameters.under_ddp(" (waits at train.py:3)", is_dtk_run=is_dtk_run)
    assert [remedy.kind for remedy in remedies] == kinds and remedies[-1].change.endswith("DDP (waits at train.py:3)")
