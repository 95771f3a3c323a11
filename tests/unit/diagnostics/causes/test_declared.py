"""A cause as the YAML file beside its module declares it."""

from pathlib import Path

import pytest
from msgspec import ValidationError
from msgspec.structs import replace

from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.registry import by_id
from diagnostics.contract.causes import Suspected
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, text_of
from diagnostics.report.jsonform import plain

TOY = """
cause:
  title: no toys
  outcome: slow
  branch: crash
  decided_from: a look
  remedy: more toys
  ruled_out_by: toys in sight
  source: a catalogue of toys
  example: {kind: log, ranks: [1]}
  explained_by:
    - {causes: [FAILED, "toys.*"], when: [ranks, group]}
texts:
  default:
    summary: "{count} toys."
    measured: "{count:.1f}"
    remedies:
      - {kind: code, change: "buy {count} more", why: none is left}
  seen: 'there are {toys}'
  several: 'there are {toys: and }'
  bear: 'a bear with {legs} legs'
  none: All here.
  open: {summary: Nobody looked., missing: a look}
example: |
  no toys
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    """`__file__` of a module with such a table beside it."""
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys/none_left.yaml").write_text(TOY)
    return str(tmp_path / "toys/none_left.py")


def test_the_path_gives_the_id_and_the_table_the_rest(module: str) -> None:
    cause = declared(module, lambda evidence: evidence, lambda facts: [])
    assert (cause.id, cause.title, cause.outcome) == ("toys.none_left", "no toys", "slow")
    assert (cause.ruled_out_by, cause.source) == ("toys in sight", "a catalogue of toys")
    assert cause.example is not None
    assert (cause.example.kind, cause.example.text, cause.example.ranks) == ("log", "no toys\n", (1,))


SUSPECTED = "suspected: {share: 0.1, decide: stacks, clues: {scalar: 2.5}}"


def test_how_it_is_suspected_is_part_of_its_file(module: str) -> None:
    Path(module).with_suffix(".yaml").write_text(f"{TOY}{SUSPECTED}\n")
    suspected = declared(module, lambda evidence: evidence, lambda facts: []).suspected
    assert suspected == Suspected(share=0.1, decide="stacks", clues={"scalar": 2.5})


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("share: 0.1", "part: 0.1", "missing required field `share`|unknown field `part`"),
        ("2.5", "0", "Expected `float` > 0"),
        ("2.5", "often", "Expected `float`, got `str`"),
        ("decide", "ranks: everybody, decide", "Invalid enum value 'everybody'"),
    ],
)
def test_a_mistake_in_how_it_is_suspected_is_refused(module: str, old: str, new: str, why: str) -> None:
    Path(module).with_suffix(".yaml").write_text(f"{TOY}{SUSPECTED.replace(old, new)}\n")
    with pytest.raises(ValidationError, match=why):
        declared(module, lambda evidence: evidence, lambda facts: [])


def test_every_finding_gets_the_id_of_its_cause(module: str) -> None:
    texts = Texts(module)
    alone = declared(module, lambda evidence: evidence, lambda facts: texts.ruled_out())
    several = declared(module, lambda evidence: evidence, lambda facts: (texts.undecided() for _ in range(facts)))
    assert [finding.cause for finding in alone.decide(None)] == ["toys.none_left"]
    assert [finding.cause for finding in several.decide(2)] == ["toys.none_left"] * 2


def test_a_group_stands_for_its_causes(module: str) -> None:
    (rule,) = declared(module, lambda evidence: evidence, lambda facts: []).explained_by
    assert (rule.causes, rule.when) == (("FAILED", "toys.*"), ("ranks", "group"))
    (waste,) = by_id()["memory.activations"].explained_by
    assert "memory.leak" in waste.causes and "WASTE" not in waste.causes


def test_texts_are_filled_in_with_figures(module: str) -> None:
    facts, borrow = Texts(module).facts, Remedy("code", "borrow one", "it is quicker")
    finding = Finding(cause="toys.none_left", status="confirmed", facts=facts(count=2))
    text = text_of(finding)
    assert (text.summary, text.measured, text.missing) == ("2 toys.", "2.0", "")
    assert text.remedies == (Remedy("code", "buy 2 more", "none is left"),)
    others = text_of(replace(finding, facts=facts(count=2, fixes=(borrow,)))).remedies
    assert others == (borrow, *text.remedies), "fixes that no row holds come first"


def test_a_phrase_is_a_row_and_its_figures_until_it_is_shown(module: str) -> None:
    texts = Texts(module)
    phrase = texts.phrase("several", toys=[texts.phrase("bear", legs=4), "a car"])
    assert len({phrase, texts.phrase("several", toys=[texts.phrase("bear", legs=4), "a car"])}) == 1
    assert (phrase.row, str(phrase)) == ("several", "there are a bear with 4 legs and a car")
    shown = plain(EvidenceItem("log", "toys.log", phrase, 3))
    assert shown == {"kind": "log", "file": "toys.log", "detail": str(phrase), "line": 3}


def test_a_row_rules_a_cause_out_or_leaves_it_open(module: str) -> None:
    texts = Texts(module)
    none, measured = texts.ruled_out(), texts.ruled_out("default", count=0)
    assert (none.status, none.confidence) == ("ruled_out", 1.0)
    assert text_of(none).summary == text_of(none).measured == "All here." and text_of(measured).measured == "0.0"
    here = texts.undecided()
    assert (here.status, here.confidence) == ("undecided", 0.0)
    assert (text_of(here).summary, text_of(here).missing) == ("Nobody looked.", "a look")


def test_what_a_figure_holds_is_not_read_as_a_sentence(module: str) -> None:
    texts = Texts(module)
    named = texts.ruled_out("seen", toys="{other:>99999999}")
    assert text_of(named).summary == "there are {other:>99999999}"
    assert str(texts.phrase("bear", legs=texts.phrase("none"))) == "a bear with All here. legs"
