"""What events of compared replicas show: which ranks differ, since when, and when nothing was compared."""

import pytest

from diagnostics.causes.numeric._replicas import INPUTS
from diagnostics.causes.registry import by_id
from diagnostics.contract.findings import CITED, text_of
from diagnostics.contract.mesh import ORDER
from tests.unit.diagnostics.causes.numeric.runs import drift, equal, foreign, over_tp, run

REPLICAS, TP = by_id()["numeric.rank_divergence"], by_id()["numeric.tp_divergence"]
GROUP = [0, 1, 2, 3]


def decide(evidence, cause=REPLICAS):
    (result,) = cause.decide(cause.facts(evidence))
    assert text_of(result).summary
    return result


def mesh(evidence, tp):
    evidence.run.manifest["mesh"] = {**dict.fromkeys(ORDER, 1), "tp": tp, "dp_shard": evidence.world_size // tp}
    return evidence


def test_the_earliest_difference_counts_and_later_ones_are_its_effects(tmp_path):
    events = {rank: [drift(200, [2], GROUP), drift(300, [1, 2, 3], GROUP)] for rank in GROUP}
    events[3] = [drift(300, [1, 2, 3], GROUP)]
    finding = decide(run(tmp_path, events, 4))
    assert (finding.ranks, finding.step) == ((2,), 200)
    assert [item.file for item in finding.evidence] == [f"events/rank_0000{rank}.jsonl" for rank in (0, 1, 2)]


def test_several_groups_are_one_finding(tmp_path):
    events = {rank: [drift(100, [rank % 2 + 2], [rank % 2, rank % 2 + 2, rank % 2 + 4])] for rank in range(6)}
    finding = decide(run(tmp_path, events, 6, strategy={"name": "hsdp"}))
    assert finding.ranks == (2, 3)
    assert finding.group.ranks == (0, 1, 2, 3, 4, 5)


def test_of_many_ranks_only_some_events_are_cited(tmp_path):
    group = list(range(CITED + 3))
    finding = decide(run(tmp_path, {rank: [drift(100, [2], group)] for rank in group}, len(group)))
    assert len(finding.evidence) == CITED and finding.group.ranks == tuple(group)


@pytest.mark.parametrize(("names", "parameter"), [({0: "a", 2: "b"}, "b"), ({0: "a"}, "a"), ({1: "c"}, None)])
def test_the_parameter_is_that_which_a_rank_that_differs_names(tmp_path, names, parameter):
    """Or else the first rank, whose majority has it too."""
    events = {rank: [drift(100, [2], GROUP, parameter=names.get(rank))] for rank in GROUP}
    summary = text_of(decide(run(tmp_path, events, 4))).summary
    assert (f"first in {parameter}" in summary) if parameter else ("first in" not in summary)


@pytest.mark.parametrize(
    ("steps", "since"),
    [
        ([], "no later than step 200"),
        ([50, 100], "between step 100 and step 200"),
        ([100, 250], "between step 100 and step 200"),  # In a group of its own, which is equal later too.
        ([200], "no later than step 200"),
    ],
)
def test_it_began_after_the_last_comparison_before_that_was_equal(tmp_path, steps, since):
    events = {rank: [drift(200, [1], [0, 1, 2])] for rank in range(3)}
    events[0] += [equal(step) for step in steps]
    assert since in text_of(decide(run(tmp_path, events, 3))).summary


@pytest.mark.parametrize(("last_step", "lost"), [(250, 51.0), (200, 1.0), (199, None), (None, None)])
def test_every_step_from_the_difference_on_is_lost(tmp_path, last_step, lost):
    finding = decide(run(tmp_path, {rank: [drift(200, [1], [0, 1, 2])] for rank in range(3)}, 3, last_step=last_step))
    assert (finding.cost and finding.cost.value) == lost


@pytest.mark.parametrize("ties", [(True, True), (False, True), (False, False)])
def test_it_is_a_tie_where_one_group_has_no_majority(tmp_path, ties):
    events = {rank: [drift(9, [0, 1], [0, 1], tie)] for rank, tie in enumerate(ties)}
    assert ("it is a tie" in text_of(decide(run(tmp_path, events))).summary) == any(ties)


def test_replicas_and_ranks_of_a_tensor_parallel_group_are_different_causes(tmp_path):
    tensor = mesh(run(tmp_path, {rank: [over_tp(20, [0, 1], [0, 1], tie=True)] for rank in range(2)}), 2)
    assert (decide(tensor, TP).status, decide(tensor).status) == ("confirmed", "undecided")
    data = mesh(run(tmp_path, {rank: [drift(20, [0, 1], [0, 1], True)] for rank in range(2)}), 2)
    assert (decide(data, TP).status, decide(data).status) == ("undecided", "confirmed")


def test_samples_are_told_from_parameters_over_tp_only(tmp_path):
    samples = mesh(run(tmp_path, {rank: [over_tp(20, [1], [0, 1], INPUTS)] for rank in range(2)}), 2)
    assert "reads samples" in text_of(decide(samples, TP)).summary
    data = run(tmp_path, {rank: [drift(20, [1], [0, 1], parameter=INPUTS)] for rank in range(2)})
    assert "drifted apart" in text_of(decide(data)).summary


def test_equal_replicas_rule_it_out(tmp_path):
    finding = decide(run(tmp_path, {0: [equal(100), equal(200)], 1: []}))
    assert (finding.status, text_of(finding).measured) == ("ruled_out", "0 of 2 comparisons differ")
    assert "after step 200" in text_of(finding).summary
    assert decide(mesh(run(tmp_path, {0: [equal(100)], 1: []}), 2), TP).status == "ruled_out"


@pytest.mark.parametrize("strategy", ["fsdp", "single"])
def test_without_replicas_there_is_nothing_to_drift(tmp_path, strategy):
    assert decide(run(tmp_path, strategy={"name": strategy})).status == "ruled_out"


def test_a_rank_alone_has_no_replica(tmp_path):
    assert decide(run(tmp_path, world_size=1)).status == "ruled_out"
    assert decide(run(tmp_path, world_size=2)).status == "undecided"


@pytest.mark.parametrize(("over", "status"), [("dp", "undecided"), (None, "ruled_out")])
def test_a_strategy_is_known_by_its_recorded_traits(tmp_path, over, status):
    evidence = run(tmp_path, strategy={"name": "mine"})
    evidence.run.manifest["strategy_traits"] = {"sharded": [], "replicated_over": over}
    assert decide(evidence).status == status


@pytest.mark.parametrize(("recorded", "requests", "status"), [(1, 2, "ruled_out"), (2, 1, "undecided")])
def test_the_recorded_mesh_says_whether_there_are_tensor_parallel_groups(tmp_path, recorded, requests, status):
    assert decide(mesh(run(tmp_path, parallel={"tp": requests}), recorded), TP).status == status


@pytest.mark.parametrize(("config", "status"), [({}, "ruled_out"), ({"parallel": {"tp": 2}}, "undecided")])
def test_without_a_mesh_the_configuration_says_it(tmp_path, config, status):
    assert decide(run(tmp_path, **config), TP).status == status


@pytest.mark.parametrize(
    ("record", "missing"),
    [
        ({"level": "light", "replica_hash_every": 100}, "record.replica_hash_every=10"),
        ({"level": "off", "replica_hash_every": 100}, "record=light record.replica_hash_every=100"),
        ({"level": "light", "replica_hash_every": 0}, "record=light record.replica_hash_every=100"),
    ],
)
def test_what_was_not_compared_is_open(tmp_path, record, missing):
    for evidence, cause in ((run(tmp_path, record=record), REPLICAS), (mesh(run(tmp_path, record=record), 2), TP)):
        finding = decide(evidence, cause)
        assert (finding.status, text_of(finding).missing) == ("undecided", missing)


@pytest.mark.parametrize("cause", [REPLICAS, TP])
def test_a_job_that_dtk_did_not_run_compares_nothing(tmp_path, cause):
    finding = decide(foreign(tmp_path), cause)
    assert finding.status == "undecided" and "a dtk run" in text_of(finding).missing


def test_invalid_events_are_skipped(tmp_path):
    damaged = [drift("x", [0], [0]), drift(1, "0", None), drift(1, ["a"], [0]), drift(1, [0], [0, 1], [[]], ["p"])]
    damaged += [drift(1, [0], [0, 2**32 - 1]), drift(1, [-1], [0, 1])]  # No ranks of any job.
    damaged += [{**drift(1, [0], [0, 1], parameter="w"), "parameters_affected": [[1]]}]
    events = {0: [{"name": "replica_divergence"}, *damaged, {"name": "replicas_equal", "step": "9"}], 1: []}
    assert decide(run(tmp_path, events)).status == "undecided"
    events[1] = [drift(300, [1], [0, 1])]
    assert decide(run(tmp_path, events)).step == 300
