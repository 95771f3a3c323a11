"""The finding about ranks that made more calls than others, which ended in order."""

from diagnostics.analysis.stall.departure import MoreCalls
from diagnostics.analysis.stall.explain import Stall
from diagnostics.causes.hang._more_calls import more_calls
from diagnostics.contract.findings import Stated
from tests.unit.diagnostics.analysis.calls import call, job


def test_the_first_additional_call_is_its_place_and_those_that_ended_are_victims() -> None:
    made, extra = call(2, 20), call(3, 30, done=False, step=7)
    state = job({0: [call(1), made, extra], 1: [call(1), made]}, 2)
    finding = more_calls(Stall(state), MoreCalls((0,), (1,), (extra,), made, extra, 0, True), Stated("x"), 0.8)
    assert (finding.status, finding.ranks, finding.victims, finding.confidence) == ("confirmed", (0,), (1,), 0.8)
    assert (finding.position, finding.step) == (3, 7)
    assert [(place.rank, place.line) for place in finding.where] == [(0, 30), (1, 20)]
    assert [item.file for item in finding.evidence] == ["rank_0", "rank_1"]
    assert "ended after" in str(finding.where[1].does)


def test_where_later_calls_agree_the_others_made_that_call() -> None:
    made, extra = call(2, 20), call(3, 30)
    case = MoreCalls((0,), (1,), (extra,), made, extra, 2, True)
    finding = more_calls(Stall(job({0: [made, extra], 1: [made]}, 2)), case, Stated("x"), 0.9)
    assert str(finding.where[1].does).startswith("made ")
