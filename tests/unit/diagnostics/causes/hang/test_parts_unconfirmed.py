"""Why a cause of hangs is not confirmed: what was measured rules it out, or what is missing leaves it open."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.analysis.stall.endings import Missing
from diagnostics.analysis.stall.explain import Stall
from diagnostics.causes.hang._parts import RECORD, UNRECORDED, ending_unknown, left_open, unconfirmed
from diagnostics.contract.findings import Finding, Text, text_of
from diagnostics.evidence.model import RankError, RunEvidence
from diagnostics.tree.arbitrate import settled
from diagnostics.tree.load import built_in
from tests.unit.diagnostics.analysis.calls import call, fact, job, waiting

DONE = {rank: [call(1), call(2)] for rank in range(2)}
STUCK = {rank: waiting(3) for rank in range(2)}


def test_without_any_record_it_is_open_and_what_records_calls_is_named() -> None:
    finding = unconfirmed(Stall(job({}, 2)))
    assert (finding.status, finding.confidence, text_of(finding).missing) == ("undecided", 0.0, str(RECORD))


def test_dumps_without_a_collective_leave_sends_and_receives_open() -> None:
    finding = unconfirmed(Stall(job({0: [], 1: []}, 2)))
    assert finding.status == "undecided" and text_of(finding).missing == str(UNRECORDED)


def test_calls_that_completed_rule_it_out() -> None:
    finding = unconfirmed(Stall(job(DONE, 2)))
    assert finding.status == "ruled_out" and "every recorded call completed" in text_of(finding).summary


def test_completed_calls_of_unequal_numbers_rule_nothing_out() -> None:
    finding = unconfirmed(Stall(job({0: [call(1), call(2)], 1: [call(1)]}, 2)))
    assert finding.status == "undecided" and text_of(finding).summary.startswith("Rank 1 made fewer calls")


def behind(*, type_: str = "", message: str = "", exit_code: int | None = None) -> Finding:
    """The finding about rank 1, which made a call less than rank 0 and ended with an error."""
    error = RankError(1, "error.json", 0, type_, message, exit_code=exit_code)
    return unconfirmed(Stall(job({0: [call(1), call(2)], 1: [call(1)]}, 2, errors=[error])))


def test_a_rank_that_failed_by_itself_made_fewer_calls_for_that_reason() -> None:
    finding = behind(type_="ValueError", message="bad sample")
    assert finding.status == "ruled_out"
    assert text_of(finding).summary.startswith("Rank 1 ended on its own (ValueError: bad sample)")


def test_an_ending_that_does_not_explain_fewer_calls_leaves_it_open() -> None:
    finding = behind(exit_code=1)
    assert finding.status == "undecided" and "no record shows why" in text_of(finding).summary


def test_what_a_run_of_dtk_lacks_is_in_its_folder(tmp_path: Path) -> None:
    run = RunEvidence(tmp_path, None, {}, {}, {}, {}, {}, {})
    missing = text_of(unconfirmed(Stall(job({}, 2, run=run)))).missing
    assert "the run's folder" in missing and "dtk watch" not in missing


def test_ranks_that_were_watched_are_not_to_be_watched_again() -> None:
    started = [fact("start", 0)]
    missing = text_of(unconfirmed(Stall(job({0: waiting(3), 1: waiting(3)}, 2, facts=started)))).missing
    assert "raise the job's own timeout" in missing and "run dtk watch" not in missing


def test_ranks_that_wait_leave_it_open_until_another_cause_is_known() -> None:
    state = job(STUCK, 2)
    open_ = replace(unconfirmed(Stall(state)), cause="hang.network")
    assert (open_.status, open_.victims, open_.basis) == ("undecided", (0, 1), "waiting")
    late = Finding(cause="hang.host_stall", status="confirmed", facts=Text("late"), ranks=(1,), victims=(0,))
    assert [finding.status for finding in settled(built_in(), [open_, late])] == ["ruled_out", "confirmed"]


def test_what_the_cause_itself_says_comes_before_what_holds_for_all() -> None:
    own = left_open("Nobody knows.", "a look", victims=(1,))
    assert unconfirmed(Stall(job(DONE, 2)), otherwise=lambda stall, waits: own) is own
    seen: list[bool] = []

    def note(stall: Stall, waits: bool) -> Finding | None:
        seen.append(waits)
        return None

    for ranks in (DONE, STUCK):
        unconfirmed(Stall(job(ranks, 2)), otherwise=note)
    assert seen == [False, True]


@pytest.mark.parametrize("silent", [True, False])
def test_a_rank_without_a_dump_may_have_only_some_causes(silent: bool) -> None:
    stall = Stall(job({0: waiting(3)}, 2), missing=Missing((1,), (0,), no_dump=True))
    finding = unconfirmed(stall, silent=silent)
    assert finding.status == "undecided"
    assert ("rank 1" in text_of(finding).missing) is silent


def test_ranks_whose_end_nobody_saw_are_named() -> None:
    text = text_of(ending_unknown("a log", (2, 3)))
    assert "ranks 2-3" in text.summary or ("2" in text.summary and "3" in text.summary)
    assert text.missing == "a log"
