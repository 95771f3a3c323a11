"""Families of causes: every cause has one, and what it is recorded for is a kind of evidence that exists."""

from diagnostics.causes.families import FAMILIES, family, traits
from diagnostics.causes.registry import built_in
from diagnostics.evidence.job.registry import readers


def test_every_cause_is_of_a_family_and_every_family_has_causes() -> None:
    assert {family(cause.id) for cause in built_in()} == FAMILIES.keys()


def test_kinds_of_evidence_exist() -> None:
    kinds = {reader.kind for reader in readers()} | {"stacks", "error", "log"}
    assert all(kinds >= known.recorded_for | known.taken_while for known in FAMILIES.values())


def test_a_users_own_family_has_no_traits_and_its_own_name() -> None:
    own = traits("data.slow_disk")
    assert (own.title, own.shows_end, own.recorded_for, own.outcome_when) == ("data", True, frozenset(), {})
