import json

import pytest

from diagnostics.causes.registry import by_id
from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.numeric.runs import foreign, run

CAUSE = by_id()["numeric.rank_divergence"]


def decide(evidence):
    (found,) = CAUSE.decide(CAUSE.facts(evidence))
    assert text_of(found).summary
    return found


def equal(step):
    return {"name": "replicas_equal", "step": step, "groups": 1}


def drift(step, ranks, group, tie=False, parameter=None):
    about = {"parameter": parameter, "parameters_affected": int(parameter is not None), "parameters_seen": 40}
    return {"name": "replica_divergence", "step": step, "ranks": ranks, "group": group, "tie": tie, **about}


def test_the_odd_replica_is_named_with_its_parameter(tmp_path):
    group = [0, 1, 2, 3]
    events = {rank: [drift(200, [2], group, parameter="head.weight" if rank == 2 else None)] for rank in group}
    events[0].insert(0, equal(100))
    found = decide(run(tmp_path, events, 4, last_step=250))
    assert (found.status, found.ranks, found.step, found.group.ranks) == ("confirmed", (2,), 200, (0, 1, 2, 3))
    assert text_of(found).summary == (
        "Rank 2 drifted apart from the other replicas between step 100 and step 200, first in head.weight "
        "(1 of 40 parameters)."
    )
    assert (found.cost.value, found.cost.unit) == (51.0, "steps lost")
    assert found.evidence[0].file == "events/rank_00000.jsonl"


def test_two_replicas_are_a_tie(tmp_path):
    events = {0: [drift(100, [0, 1], [0, 1], True)], 1: [drift(100, [0, 1], [0, 1], True, "head.weight")]}
    found = decide(run(tmp_path, events))
    assert found.ranks == (0, 1)
    assert "it is a tie" in text_of(found).summary
    assert "no later than step 100" in text_of(found).summary


def test_several_groups_are_one_finding(tmp_path):
    events = {rank: [drift(100, [rank % 2 + 2], [rank % 2, rank % 2 + 2, rank % 2 + 4])] for rank in range(6)}
    found = decide(run(tmp_path, events, 6, strategy={"name": "hsdp"}))
    assert found.ranks == (2, 3)
    assert found.group.ranks == (0, 1, 2, 3, 4, 5)


def test_equal_replicas_rule_it_out(tmp_path):
    found = decide(run(tmp_path, {0: [equal(100), equal(200)], 1: []}))
    assert (found.status, text_of(found).measured) == ("ruled_out", "0 of 2 comparisons differ")


@pytest.mark.parametrize("strategy", ["fsdp", "single"])
def test_without_replicas_there_is_nothing_to_drift(tmp_path, strategy):
    assert decide(run(tmp_path, strategy={"name": strategy})).status == "ruled_out"


def test_what_was_not_compared_is_open(tmp_path):
    early = decide(run(tmp_path))
    assert (early.status, text_of(early).missing) == ("undecided", "record.replica_hash_every=10")
    off = decide(run(tmp_path, record={"level": "off", "replica_hash_every": 100}))
    assert "record=light" in text_of(off).missing
    assert decide(foreign(tmp_path)).status == "undecided"


@pytest.mark.parametrize(("over", "status"), [("dp", "undecided"), (None, "ruled_out")])
def test_a_strategy_is_known_by_its_recorded_traits(tmp_path, over, status):
    evidence = run(tmp_path, strategy={"name": "mine"})
    evidence.run.manifest["strategy_traits"] = {"sharded": [], "replicated_over": over}
    assert decide(evidence).status == status


def test_odd_events_are_passed_over(tmp_path):
    damaged = [drift("x", [0], [0]), drift(1, "0", None), drift(1, ["a"], [0]), drift(1, [0], [0, 1], [[]], ["p"])]
    damaged += [drift(1, [0], [0, 2**32 - 1]), drift(1, [-1], [0, 1])]  # No ranks of any job.
    damaged += [{**drift(1, [0], [0, 1], parameter="w"), "parameters_affected": [[1]]}]
    events = {0: [{"name": "replica_divergence"}, *damaged], 1: []}
    assert decide(run(tmp_path, events)).status == "undecided"


def leftovers():
    """The records of a run of four ranks in which rank 2 differs at step 200."""
    event = {"kind": "event", "time_s": 1.0, **drift(200, [2], [0, 1, 2, 3])}
    return {
        "status.json": json.dumps({"state": "finished", "step": 250}),
        "manifest.json": json.dumps({"run_id": "r", "schema_version": 1, "world_size": 4}),
        **{f"events/rank_{rank:05d}.jsonl": f"{json.dumps(event)}\n" for rank in range(4)},
    }


EXAMPLES = {"numeric.rank_divergence": Example(leftovers, (2,))}
