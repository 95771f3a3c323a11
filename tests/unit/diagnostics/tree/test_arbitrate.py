"""Which of several confirmed findings are root causes, by the rules of the built-in trees."""

from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.contract.findings import Cost, Finding, Group, Text, text_of
from diagnostics.diagnose import diagnose
from diagnostics.tree.arbitrate import Verdict, arbitrate, settled
from diagnostics.tree.load import built_in
from tests.shared_data import shared_data
from tests.work import calls_in

WORLD = Group("0", (0, 1, 2, 3))
TREES = built_in()


def finding_of(cause: str, *ranks: int, victims: tuple[int, ...] = (), **values: Any) -> Finding:
    values = {
        "status": "confirmed",
        "facts": Text(cause),
        "group": WORLD if cause.startswith("hang.") else None,
        **values,
    }
    return Finding(cause=cause, ranks=ranks, victims=victims, **values)


def roots(*findings: Finding) -> list[tuple[str, tuple[int, ...]]]:
    """Root causes, the same for every order of the findings."""
    results = [
        [(root.cause, root.ranks) for root in arbitrate(TREES, order).roots] for order in (findings, findings[::-1])
    ]
    assert results[0] == results[1]
    return results[0]


def verdict(*findings: Finding) -> Verdict:
    return arbitrate(TREES, findings)


@pytest.mark.parametrize("end", ["hang.rank_raised", "hang.rank_killed", "hang.rank_oom"])
def test_a_rank_that_is_gone_explains_what_it_misses_and_its_peers(end: str) -> None:
    peers = (
        finding_of("hang.conditional_collective", 3, victims=(0, 1, 2)),
        finding_of("hang.rank_raised", 0, 1, 2),
        finding_of("hang.network"),
        finding_of("hang.host_stall", 1),
    )
    assert roots(finding_of(end, 3, victims=(0, 1, 2)), *peers) == [(end, (3,))]


def test_a_mismatch_explains_the_abort_and_the_closed_connections() -> None:
    mismatch = finding_of("hang.signature_mismatch", 3, victims=(0, 1, 2))
    assert roots(
        mismatch,
        finding_of("hang.rank_killed", 2),
        finding_of("hang.rank_raised", 0, 1),
        finding_of("hang.network"),
    ) == [("hang.signature_mismatch", (3,))]


def test_an_exception_that_was_swallowed_comes_before_the_mismatch_after_it() -> None:
    raised = finding_of("hang.rank_raised", 1, victims=(0, 2, 3))
    assert roots(raised, finding_of("hang.collective_mismatch", 1, victims=(0, 2, 3))) == [("hang.rank_raised", (1,))]


def test_a_hang_that_is_recorded_comes_before_the_time_limit_at_which_it_ends() -> None:
    late = finding_of("hang.host_stall", 1, victims=(0, 2, 3), confidence=0.6, basis="places")
    limit, lost_node = (finding_of("env.job_stopped", confidence=sure) for sure in (0.75, 0.95))
    assert roots(late, limit) == [("hang.host_stall", (1,))]
    assert {cause for cause, _ in roots(late, lost_node)} == {"hang.host_stall", "env.job_stopped"}
    assert len(roots(replace(late, basis="waiting"), limit)) == 2, "ranks wait for those that were stopped, too"


def test_fewer_steps_come_before_the_normal_exit_and_the_missing_collective() -> None:
    assert roots(
        finding_of("hang.uneven_iterations", 1, victims=(0, 2, 3)),
        finding_of("hang.rank_exited", 1, victims=(0, 2, 3)),
        finding_of("hang.conditional_collective", 1, victims=(0, 2, 3)),
    ) == [("hang.uneven_iterations", (1,))]


def test_a_circle_explains_what_each_member_misses() -> None:
    assert roots(
        finding_of("hang.group_order", 0, 1, victims=(2, 3)),
        finding_of("hang.conditional_collective", 0, victims=(1,)),
        finding_of("hang.conditional_collective", 1, victims=(0,)),
        finding_of("hang.rank_raised", 2, 3),
    ) == [("hang.group_order", (0, 1))]


def test_the_memory_cause_explains_the_rank_that_ran_out() -> None:
    result = verdict(
        finding_of("memory.full_gather", 0, 1, 2, 3, cost=Cost(2.0**34, "bytes")),
        finding_of("hang.rank_oom", 2, victims=(0, 1, 3)),
        finding_of("hang.rank_raised", 2),
        finding_of("hang.rank_killed", 0, 1, 3),
    )
    assert [root.cause for root in result.roots] == ["memory.full_gather"]
    assert result.outcome == "oom"
    assert result.explained == dict.fromkeys((1, 2, 3), ("memory.full_gather",))


def test_memory_that_did_not_run_out_is_a_risk() -> None:
    assert verdict(finding_of("memory.leak", 0, cost=Cost(1e9, "bytes"))).outcome == "at_risk"


TIE = finding_of("hang.collective_mismatch", 0, 1, confidence=0.8)


def test_a_tie_is_explained_by_a_finding_of_its_cause_that_shows_the_culprit() -> None:
    assert roots(TIE, finding_of("hang.collective_mismatch", 1, confidence=0.8)) == [("hang.collective_mismatch", (1,))]
    assert len(roots(TIE, finding_of("hang.collective_mismatch", 1, confidence=0.7))) == 2, "it is less sure"
    assert len(roots(TIE, finding_of("hang.collective_mismatch", 2))) == 2, "it is about another rank"
    with_victims = finding_of("hang.collective_mismatch", 0, 1, confidence=0.8, victims=(2,))
    assert len(roots(with_victims, finding_of("hang.collective_mismatch", 1))) == 2, (
        "who suffers is known, so it is no tie"
    )
    assert len(roots(finding_of("hang.host_stall", 0, 1), finding_of("hang.host_stall", 1))) == 2, (
        "its relations name no ties"
    )


def test_a_late_host_explains_the_skew_but_not_that_of_another_rank() -> None:
    assert roots(finding_of("overlap.data_bound", 2), finding_of("overlap.skew", 2)) == [("overlap.data_bound", (2,))]
    assert len(roots(finding_of("overlap.data_bound", 2), finding_of("overlap.skew", 1))) == 2


def test_independent_causes_stay_the_one_that_ended_the_run_first() -> None:
    result = verdict(
        finding_of("overlap.small_buckets", 0, 1, cost=Cost(1e6, "ms per step")),
        finding_of("env.unknown_variable"),
        finding_of("hang.host_stall", 1, cost=Cost(300, "s blocked")),
    )
    assert [root.cause for root in result.roots] == ["hang.host_stall", "overlap.small_buckets", "env.unknown_variable"]
    assert result.outcome == "hung"


def test_two_ranks_that_raised_independently_both_stay() -> None:
    both = (finding_of("hang.rank_raised", 1, victims=(0,)), finding_of("hang.rank_raised", 2, victims=(0,)))
    assert roots(*both) == [("hang.rank_raised", (1,)), ("hang.rank_raised", (2,))]


def test_findings_that_explain_each_other_are_a_tie() -> None:
    tie = (
        finding_of("hang.rank_raised", 1, victims=(0, 2, 3)),
        finding_of("hang.rank_raised", 2, victims=(0, 1, 3)),
    )
    assert roots(*tie) == [("hang.rank_raised", (1,)), ("hang.rank_raised", (2,))]


OPEN = finding_of("hang.network", status="undecided", victims=(0, 1, 2), basis="waiting")


def test_open_waits_are_ruled_out_by_the_cause_that_accounts_for_all_of_them() -> None:
    killed = finding_of("hang.rank_killed", 3, victims=(0, 1, 2))
    open_for_another_reason = replace(OPEN, basis="records")
    ruled_out, remaining, _ = settled(TREES, [OPEN, open_for_another_reason, killed])
    assert (ruled_out.status, ruled_out.cause, ruled_out.victims) == ("ruled_out", "hang.network", ())
    assert "hang.rank_killed" in text_of(ruled_out).summary and remaining is open_for_another_reason
    for other in (
        replace(killed, victims=(0, 1)),  # Rank 2 waits for an unknown reason.
        replace(killed, confidence=0.4),
        replace(killed, basis="waiting"),
        finding_of("numeric.non_finite", 3, victims=(0, 1, 2)),
    ):
        assert settled(TREES, [OPEN, other])[0].status == "undecided"


def test_causes_rule_a_wait_out_together_and_leave_the_ranks_that_none_of_them_explains() -> None:
    finding, other = finding_of("hang.rank_killed", 3, victims=(0,)), finding_of("hang.device_stall", 2, victims=(1,))
    ruled_out, *_ = settled(TREES, [OPEN, finding, other])
    assert text_of(ruled_out).summary == "hang.device_stall, hang.rank_killed explain the waiting."
    assert [result.victims for result in settled(TREES, [OPEN, finding])] == [(1, 2), (0,)]
    nobody = finding_of("hang.network")
    assert settled(TREES, [OPEN, nobody])[0].status == "ruled_out", "it concerns the whole job"


def test_a_finding_explains_those_of_a_weaker_basis_about_its_ranks() -> None:
    recorded = finding_of("hang.conditional_collective", 3, victims=(0, 1, 2), confidence=0.6)
    stacks = finding_of("hang.rendezvous", victims=(0, 1), basis="places", confidence=0.95)
    assert roots(recorded, stacks) == [("hang.conditional_collective", (3,))]
    assert len(roots(recorded, replace(stacks, basis="records"))) == 2
    assert len(roots(recorded, replace(stacks, victims=(0, 7)))) == 2, "rank 7 is no victim of it"
    assert len(roots(replace(recorded, ranks=()), finding_of("hang.rank_oom", 1, basis="places"))) == 2, (
        "it blames nobody"
    )
    suspected = replace(stacks, confidence=0.4)
    assert settled(TREES, [recorded, suspected])[1].status == "ruled_out"


def test_what_is_not_sure_or_not_confirmed_is_no_root_and_explains_nothing() -> None:
    unsure = finding_of("hang.rank_raised", 3, victims=(0, 1, 2), confidence=0.4)
    undecided = finding_of("hang.rank_killed", 3, status="undecided")
    assert roots(unsure, undecided, finding_of("hang.network")) == [("hang.network", ())]


def test_the_costlier_of_two_comes_first() -> None:
    cheap = finding_of("overlap.small_buckets", 0, cost=Cost(3, "ms per step"))
    dear = finding_of("overlap.host_bound", 0, cost=Cost(30, "ms per step"))
    assert [cause for cause, _ in roots(cheap, dear)] == ["overlap.host_bound", "overlap.small_buckets"]


@pytest.mark.parametrize(
    ("share", "sure", "first"),
    [(0.03, 0.95, "memory.leak"), (0.3, 0.95, "overlap.host_bound"), (0.03, 0.7, "overlap.host_bound")],
)
def test_a_leak_that_is_certain_comes_before_a_small_loss_of_time(share: float, sure: float, first: str) -> None:
    slow = finding_of("overlap.host_bound", 0, cost=Cost(6.0, "ms per step", share))
    leak = finding_of("memory.leak", 0, cost=Cost(2.0**28, "bytes"), confidence=sure)
    setting = finding_of("env.risky_setting", 0)
    assert roots(slow, leak, setting)[0][0] == first
    assert roots(slow, leak, setting)[2][0] == "env.risky_setting"


def test_hundreds_of_findings_take_little_work() -> None:
    many = [finding_of("hang.rank_raised", rank, victims=(0,)) for rank in range(1, 600)]
    result, calls = calls_in(lambda: verdict(*many))
    assert len(result.roots) == 599
    assert calls < 4_000_000


def test_missing_gradients_follow_from_the_ranks_own_exception_not_the_reverse() -> None:
    raised = finding_of("hang.rank_raised", 2, victims=(1, 3))
    assert roots(raised, finding_of("hang.unused_parameters", 2, victims=(0, 1, 3))) == [("hang.rank_raised", (2,))]
    missing = finding_of("hang.unused_parameters", 1, victims=(0, 2, 3))
    assert roots(missing, raised) == [("hang.unused_parameters", (1,))]


@pytest.mark.parametrize(("cost_ms", "expected"), [(0.44, 2), (2.1, 2), (2.2, 1), (9.0, 1)])
def test_what_costs_far_less_explains_nothing(cost_ms: float, expected: int) -> None:
    small = finding_of("overlap.sync_point", 0, 1, cost=Cost(cost_ms, "ms per step"))
    large = finding_of("overlap.host_bound", 0, 1, cost=Cost(6.53, "ms per step"))
    assert len(roots(small, large)) == expected
    if expected == 2:
        assert roots(small, large)[0][0] == "overlap.host_bound"


def test_the_largest_cost_of_a_real_job_comes_first() -> None:
    report = diagnose(shared_data("traces/dlrm8_v100"))
    costs = [root_cause.cost.value for root_cause in report.root_causes if root_cause.cost]
    assert report.root_causes[0].cause == "overlap.host_bound" and costs == sorted(costs, reverse=True)
    assert [finding.finding.cause for finding in report.findings if finding.explained_by] == ["overlap.skew"]


def test_a_run_that_finished_rules_out_open_causes_of_other_ends_only() -> None:
    findings = [
        finding_of("hang.host_stall", 1),
        finding_of("hang.network", status="undecided"),
        finding_of("hang.straggler", status="undecided"),
    ]
    open_, finished = settled(TREES, findings), settled(TREES, findings, finished=True)
    assert {item.cause for item in open_ if item.status == "ruled_out"} == set()
    status = {item.cause: (item.status, text_of(item).summary) for item in finished}
    assert status["hang.network"] == ("ruled_out", "The run finished.")
    assert status["hang.host_stall"][0] == "confirmed" and status["hang.straggler"][0] == "undecided"
