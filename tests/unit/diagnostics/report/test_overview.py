"""What a report says as a whole: headline, kind of trouble, and what is left open."""

import pytest
from msgspec.structs import replace

from diagnostics.analysis.symptoms.state import Symptoms, Waiting
from diagnostics.contract.findings import Finding, Suspicion, Text, text_of
from diagnostics.report.diagnosis import document
from diagnostics.report.model import Coverage, Decided
from diagnostics.report.overview import (
    OUTCOMES,
    count,
    families,
    family,
    headline,
    missing,
    others_text,
    undecided,
    word,
)
from tests.unit.diagnostics.report.samples import finding, report


def open_cause(cause: str, lacks: str = "a trace") -> Decided:
    return Decided(Finding(cause=cause, status="undecided", facts=Text("open", missing=lacks), confidence=0.0))


def test_the_headline_is_the_first_root_cause_in_words() -> None:
    result = report(finding("overlap.small_buckets", ranks=(0, 1, 2, 3)))
    assert headline(result) == "gradients are reduced in many tiny buckets"
    diverged = replace(report(finding("hang.signature_mismatch", ranks=(1,))), outcome="diverged")
    assert headline(diverged).endswith("different arguments, unnoticed: the run ended")
    assert "unnoticed" not in headline(replace(diverged, outcome="hung"))


def test_a_job_that_was_stopped_did_not_crash() -> None:
    stopped = replace(report(finding("env.job_stopped")), outcome="crashed")
    assert document(stopped).title.startswith("STOPPED: ") and stopped.outcome == "crashed"
    assert word("hung", "env.job_stopped") == "HUNG" and word("crashed", "hang.rank_raised") == "CRASHED"
    assert word("healthy") == "HEALTHY" and word("oom") == "OUT OF MEMORY" and word("at_risk") == "AT RISK"


def test_the_headline_without_a_cause_says_what_is_known() -> None:
    healthy = report()
    assert healthy.healthy and headline(healthy).startswith(f"no cause found: {len(healthy.findings)} ruled out, 0 und")
    waiting = Symptoms((Waiting((0, 1), "all_reduce", 9, 4),), (), (), (), frozenset())
    open_report = replace(healthy, outcome="undecided")
    assert headline(replace(open_report, waiting=waiting)).startswith("ranks 0 and 1 wait in all_reduce of 4 elements")
    suspicion = Suspicion("memory.activations", 0.4)
    assert "a device ran out of memory" in headline(replace(open_report, suspicions=(suspicion,)))
    assert headline(replace(open_report, statement="all dumps are empty")) == "all dumps are empty"
    assert "no cause is confirmed" in headline(open_report)


def test_a_suspicion_is_confirmed_but_not_sure() -> None:
    likely, sure = finding("memory.leak", confidence=0.4), finding("memory.leak", confidence=0.5)
    assert likely.suspected and not sure.suspected
    assert (likely.verdict, sure.verdict) == ("undecided", "confirmed")
    assert not open_cause("memory.leak").finding.suspected
    assert count(report(likely))["confirmed"] == 0
    assert "one is suspected" in headline(replace(report(likely), outcome="undecided"))
    ran_out = finding("hang.rank_oom", confidence=0.4)
    assert headline(replace(report(ran_out), outcome="oom")) == text_of(ran_out).summary.rstrip(".")


def test_findings_are_counted_by_status() -> None:
    result = report(finding("memory.leak", ranks=(0,)))
    counts = count(result)
    assert counts["confirmed"] == 1 and counts["undecided"] == 0
    assert counts["confirmed"] + counts["ruled_out"] == len(result.findings)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("trace",), "overlap"),
        (("snapshot", "trace"), "memory"),
        (("flight", "trace"), "hang"),
        (("heartbeat",), "hang"),
    ],
)
def test_without_a_cause_the_evidence_tells_what_it_is_about(kinds: tuple[str, ...], expected: str) -> None:
    coverage = tuple(Coverage(kind, 1, 1, ()) for kind in kinds)
    text = replace(report(), outcome="undecided", coverage=coverage)
    assert families(text) == {expected}
    assert families(replace(text, outcome="healthy")) == set()
    suspected = replace(report(finding("numeric.spike", confidence=0.3)), outcome="undecided", coverage=coverage)
    assert families(suspected) == {"numeric"}


def test_undecided_causes_of_other_kinds_are_apart() -> None:
    result = report(finding("memory.leak", ranks=(0,)))
    open_ones = (open_cause("memory.host"), open_cause("overlap.skew"), open_cause("numeric.spike"))
    near, others = undecided(replace(result, findings=(*result.findings, *open_ones)))
    assert [item.finding.cause for item in near] == ["memory.host"]
    assert [other.finding.cause for other in others] == ["overlap.skew", "numeric.spike"]
    assert others_text(others) == "2 causes of numerics and speed could not be decided"
    assert others_text(others[:1]) == "1 cause of speed could not be decided"
    assert others_text([]) == ""


def test_what_decides_most_is_named_first() -> None:
    causes = [open_cause("hang.a", "a log"), open_cause("hang.b"), open_cause("hang.c"), open_cause("hang.d", "")]
    assert missing(causes) == [("a trace", ["hang.b", "hang.c"]), ("a log", ["hang.a"])]
    assert missing(causes, "hang.a") == [("a log", ["hang.a"]), ("a trace", ["hang.b", "hang.c"])]
    assert missing(causes, "hang.d") == missing(causes)  # It lacks nothing that could be recorded.


def test_every_family_of_causes_has_words() -> None:
    for decided in report().findings:
        text = others_text([decided])
        assert f" {family(decided.finding.cause)} " not in text.replace("memory", ""), text
    assert set(OUTCOMES) >= {"healthy", "undecided"} and all(text.isupper() for text in OUTCOMES.values())
