"""The type of a cause: what a declaration must name, and what it may leave out."""

import pytest

from diagnostics.contract.causes import Cause, ExplainedBy
from diagnostics.contract.findings import Finding

REQUIRED = {
    "id": "hang.toy",
    "title": "a toy",
    "outcome": "hung",
    "branch": "hang",
    "facts": len,
    "decide": lambda facts: [Finding(status="ruled_out", facts="none")] * facts,
    "decided_from": "logs",
    "remedy": "none",
    "ruled_out_by": "a finished run",
    "source": "a manual",
}


@pytest.mark.parametrize("left_out", sorted(REQUIRED))
def test_a_cause_needs_every_part_of_its_declaration(left_out):
    with pytest.raises(TypeError, match=left_out):
        Cause(**{name: value for name, value in REQUIRED.items() if name != left_out})


def test_it_decides_from_the_facts_that_it_builds():
    cause = Cause(**REQUIRED)
    assert [finding.status for finding in cause.decide(cause.facts("ab"))] == ["ruled_out", "ruled_out"]


def test_it_stands_alone_and_is_a_root_cause_unless_it_says_otherwise():
    cause = Cause(**REQUIRED)
    assert (cause.explained_by, cause.example, dict(cause.outcome_when)) == ((), None, {})
    assert not (cause.names_outcome or cause.noted or cause.tells_end)


def test_a_relation_is_fixed_once_it_is_declared():
    relation = ExplainedBy(causes=("overlap.*",), when=("any",))
    with pytest.raises(AttributeError):
        relation.when = ("ranks",)
