"""Replicas of data parallelism that drifted apart: what the finding says (`test_replicas.py` decides)."""

import json

from diagnostics.causes.registry import by_id
from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.numeric.runs import drift, equal, run

CAUSE = by_id()["numeric.rank_divergence"]


def decide(evidence):
    (result,) = CAUSE.decide(CAUSE.facts(evidence))
    assert text_of(result).summary
    return result


def test_the_odd_replica_is_named_with_its_parameter(tmp_path):
    group = [0, 1, 2, 3]
    events = {rank: [drift(200, [2], group, parameter="head.weight" if rank == 2 else None)] for rank in group}
    events[0].insert(0, equal(100))
    finding = decide(run(tmp_path, events, 4, last_step=250))
    assert (finding.status, finding.ranks, finding.step, finding.group.ranks) == ("confirmed", (2,), 200, (0, 1, 2, 3))
    assert text_of(finding).summary == (
        "Rank 2 drifted apart from the other replicas between step 100 and step 200, first in head.weight "
        "(1 of 40 parameters)."
    )
    assert (finding.cost.value, finding.cost.unit) == (51.0, "steps lost")
    assert finding.evidence[0].file == "events/rank_00000.jsonl"


def test_two_replicas_are_a_tie(tmp_path):
    events = {0: [drift(100, [0, 1], [0, 1], True)], 1: [drift(100, [0, 1], [0, 1], True, "head.weight")]}
    finding = decide(run(tmp_path, events))
    assert finding.ranks == (0, 1)
    assert "it is a tie" in text_of(finding).summary
    assert "no later than step 100" in text_of(finding).summary


def leftovers():
    """The records of a run of four ranks in which rank 2 differs at step 200."""
    event = {"kind": "event", "time_s": 1.0, **drift(200, [2], [0, 1, 2, 3])}
    return {
        "status.json": json.dumps({"state": "finished", "step": 250}),
        "manifest.json": json.dumps({"run_id": "r", "schema_version": 1, "world_size": 4}),
        **{f"events/rank_{rank:05d}.jsonl": f"{json.dumps(event)}\n" for rank in range(4)},
    }


EXAMPLES = {"numeric.rank_divergence": Example(leftovers, (2,))}
