"""Families of causes: every cause has one, and what it is recorded for is a kind of evidence that exists."""

import ast
import re

from diagnostics.causes.registry import FAMILIES, built_in, family, traits
from diagnostics.evidence.job.registry import readers
from tests.faults.truth import ROOT


def test_every_cause_is_of_a_family_and_every_family_has_causes() -> None:
    assert {family(cause.id) for cause in built_in()} == FAMILIES.keys()


def test_kinds_of_evidence_exist() -> None:
    kinds = {reader.kind for reader in readers()} | {"stacks", "error", "log"}
    assert all(kinds >= family.recorded_for | family.taken_while for family in FAMILIES.values())


def test_a_users_own_family_has_no_traits_and_its_own_name() -> None:
    own = traits("data.slow_disk")
    assert (own.title, own.shows_end, own.recorded_for, own.outcome_when) == ("data", True, frozenset(), {})


def test_what_reads_traits_names_no_family() -> None:
    """A comparison with the name of a family, or a table by such names, would have to change for a new family."""
    readers_of_traits = 0
    for path in (path for package in ("diagnostics", "dtk") for path in (ROOT / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\.cause\.(?:r?partition|r?split|startswith)\(", text), f"{path}: read families.traits"
        if "from diagnostics.causes.registry import" not in text:
            continue
        readers_of_traits += 1
        for node in ast.walk(ast.parse(text)):
            compared = node.comparators if isinstance(node, ast.Compare) else ()
            names = {leaf.value for own in compared for leaf in ast.walk(own) if isinstance(leaf, ast.Constant)}
            keys = {ast.unparse(key).strip("'") for key in node.keys if key} if isinstance(node, ast.Dict) else set()
            assert not names & FAMILIES.keys(), f"{path}:{node.lineno}"
            assert not keys or not keys <= FAMILIES.keys(), f"{path}:{node.lineno}"
    assert readers_of_traits > 5, "the modules were not read"
