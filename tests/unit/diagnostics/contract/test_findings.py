"""Findings as typed data, and how they are put into words."""

import pytest
from msgspec.structs import replace

from diagnostics.contract.findings import (
    Finding,
    FormattedFacts,
    Remedy,
    Text,
    text_of,
)

OVERRIDE = Remedy("override", "strategy.bucket_cap_mb=25", "larger buckets")
CODE = Remedy("code", "wrap each block", "units are gathered one by one")


def test_words_are_made_when_they_are_asked_for() -> None:
    causes = []

    def words(finding: Finding, count: int) -> Text:
        causes.append(finding.cause)
        return Text(summary=f"{count} ranks {finding.ranks}")

    finding = Finding(cause="hang.x", status="confirmed", facts=FormattedFacts(words, {"count": 3}), ranks=(1,))
    assert causes == []
    assert text_of(finding).summary == text_of(finding).summary == "3 ranks (1,)" and causes == ["hang.x"]
    assert text_of(replace(finding, ranks=(2,))).summary == "3 ranks (2,)"  # What was made is not carried over.
    three, four = (FormattedFacts(words, {"count": count}) for count in (3, 4))
    assert finding.facts == three != four


@pytest.mark.parametrize(
    ("remedies", "first"), [((), "fault=none"), ((CODE,), "fault=none"), ((OVERRIDE,), OVERRIDE.change)]
)
def test_a_planted_fault_is_removed_unless_an_override_fixes_it(remedies: tuple[Remedy, ...], first: str) -> None:
    facts = Text("It is so.", remedies=remedies)
    injected = Finding(cause="hang.x", status="confirmed", facts=facts, injected="no_bucket")
    text = text_of(injected)
    assert text.remedies[0].change == first and text.remedies[-len(remedies) or None :] == (remedies or text.remedies)
    assert text_of(Finding(cause="hang.x", status="confirmed", facts=facts)).remedies == remedies


def test_words_that_are_given_are_shown_as_they_are() -> None:
    finding = Finding(cause="site.x", status="undecided", facts=Text("{not a figure}", "m", "a log", (CODE,)))
    assert text_of(finding) == Text(summary="{not a figure}", measured="m", missing="a log", remedies=(CODE,))
