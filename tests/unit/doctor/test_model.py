"""Results from findings: the worst counts, each remedy is told once."""

from hypothesis import given
from hypothesis import strategies as st

from dtk.doctor.model import SEVERITY, Finding, Remedy, Result, failure, graded, judged, not_applicable, warning, worst


def test_remedies_are_told_once():
    fix = Remedy("do", "it")
    result = judged([Finding("warning", "a", fix), Finding("failure", "b", fix)], "fine")
    assert (result.status, result.summary, result.details, result.remedies) == ("failure", "b", ("warning: a",), (fix,))


def test_the_worst_finding_is_the_summary_and_the_others_are_details():
    found = [warning("w", "do", "x"), failure("f", "fix"), Finding("warning", "v")]
    result = judged(found, "fine", details=["more"], measures={"a": 1}, common={"torch": "2"})
    assert (result.status, result.summary) == ("failure", "f")
    assert result.details == ("warning: w", "warning: v", "more")
    assert result.remedies == (Remedy("fix"), Remedy("do", "x"))
    assert (result.measures, result.common) == ({"a": 1}, {"torch": "2"})


def test_without_a_finding_all_is_well():
    assert judged([], "fine") == Result("ok", "fine")
    assert judged(iter(()), "fine").status == "ok"


@given(st.lists(st.sampled_from(SEVERITY)))
def test_the_worst_status_is_one_of_them(statuses):
    if statuses:
        assert worst(statuses) in statuses and all(
            SEVERITY.index(worst(statuses)) >= SEVERITY.index(status) for status in statuses
        )
    else:
        assert worst(statuses) == "not_applicable"


def test_findings_by_how_bad_they_are():
    assert graded(True, "t", "do", "x") == failure("t", "do", "x")
    assert graded(False, "t") == warning("t") and warning("t").remedy is None
    assert not_applicable("why", details=("d",)) == Result("not_applicable", "why", ("d",))
