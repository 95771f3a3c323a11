"""Findings as typed data, and how they are put into words."""

import pytest

from diagnostics.contract.findings import (
    Finding,
    Remedy,
    Sentence,
    Stated,
    Text,
    Worded,
    ruled_out,
    text_of,
    undecided,
    worded,
)
from diagnostics.contract.formatting import Bytes

OVERRIDE = Remedy("override", "strategy.bucket_cap_mb=25", "larger buckets")
CODE = Remedy("code", "wrap each block", "units are gathered one by one")


def test_ruled_out_shows_the_value_that_says_so() -> None:
    finding = ruled_out("memory.leak", "What a step allocates it frees.", "{left} is left after {steps:,} steps",
                        left=Bytes(0), steps=1200)  # fmt: skip
    text = text_of(finding)
    assert (finding.status, finding.confidence, finding.ranks) == ("ruled_out", 1.0, ())
    assert (text.summary, text.measured) == ("What a step allocates it frees.", "0 bytes is left after 1,200 steps")


def test_a_sentence_alone_is_summary_and_measure() -> None:
    text = text_of(ruled_out("overlap.skew", "{count} of {all} ranks", count=0, all=4))
    assert text.summary == text.measured == "0 of 4 ranks" and not text.missing


def test_undecided_names_what_would_record_it_and_is_sure_of_nothing() -> None:
    finding = undecided("overlap.skew", "Only {traced} ranks were traced.", "a trace of every rank", traced=2)
    text = text_of(finding)
    assert (finding.status, finding.confidence) == ("undecided", 0.0)
    assert (text.summary, text.missing, text.measured) == ("Only 2 ranks were traced.", "a trace of every rank", "")


def test_figures_may_have_any_name() -> None:
    finding = ruled_out("env.x", "{summary} {cause}", "{measured}", summary="a", cause="b", measured="c")
    assert (text_of(finding).summary, text_of(finding).measured) == ("a b", "c")


def test_what_a_figure_holds_is_not_read_as_a_sentence() -> None:
    assert text_of(ruled_out("env.x", "{name}", name="{other:>99999999}")).summary == "{other:>99999999}"


def test_words_are_made_when_they_are_asked_for() -> None:
    made = []

    def words(finding: Finding, count: int) -> Text:
        made.append(finding.cause)
        return Text(summary=f"{count} ranks {finding.ranks}")

    finding = Finding(cause="hang.x", status="confirmed", facts=worded(words, count=3), ranks=(1,))
    assert made == []
    assert text_of(finding).summary == "3 ranks (1,)" and made == ["hang.x"]
    assert worded(words, count=3) == worded(words, count=3) != worded(words, count=4)


@pytest.mark.parametrize(
    ("remedies", "first"), [((), "fault=none"), ((CODE,), "fault=none"), ((OVERRIDE,), OVERRIDE.change)]
)
def test_a_planted_fault_is_removed_unless_an_override_fixes_it(remedies: tuple[Remedy, ...], first: str) -> None:
    facts = Stated("It is so.", remedies=remedies)
    injected = Finding(cause="hang.x", status="confirmed", facts=facts, injected="no_bucket")
    text = text_of(injected)
    assert text.remedies[0].change == first and text.remedies[-len(remedies) or None :] == (remedies or text.remedies)
    assert text_of(Finding(cause="hang.x", status="confirmed", facts=facts)).remedies == remedies


def test_words_that_are_given_are_shown_as_they_are() -> None:
    finding = Finding(cause="site.x", status="undecided", facts=Stated("{not a figure}", "m", "a log", (CODE,)))
    assert text_of(finding) == Text(summary="{not a figure}", measured="m", missing="a log", remedies=(CODE,))


def test_figures_of_an_undecided_finding_have_no_measure() -> None:
    facts = Worded(Sentence("{n} calls", "a dump", summary="not shown"), {"n": 4})
    assert facts.text(Finding(cause="x", status="undecided", facts=facts)) == Text(summary="4 calls", missing="a dump")
