"""Ranks of a tensor-parallel group that differ: what the finding says (`test_replicas.py` decides)."""

import json

from diagnostics.causes.registry import by_id
from diagnostics.contract.findings import text_of
from diagnostics.contract.mesh import ORDER
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.numeric.runs import equal, over_tp, run
from tests.unit.diagnostics.ring_bytes import run_files

CAUSE = by_id()["numeric.tp_divergence"]


def decide(evidence, tp=2):
    evidence.run.manifest["mesh"] = {**dict.fromkeys(ORDER, 1), "tp": tp, "dp_shard": evidence.world_size // tp}
    (result,) = CAUSE.decide(CAUSE.facts(evidence))
    assert text_of(result).summary
    return result


def test_other_samples_in_a_group_of_four(tmp_path):
    events = {rank: [equal(10), over_tp(20, [1], [0, 1, 2, 3])] for rank in range(4)}
    finding = decide(run(tmp_path, events, 4, last_step=30), tp=4)
    assert (finding.status, finding.cause, finding.ranks, finding.step) == (
        "confirmed",
        "numeric.tp_divergence",
        (1,),
        20,
    )
    assert text_of(finding).summary == (
        "Rank 1 reads samples that differ from those of the other ranks of the group at step 20, and were equal at "
        "step 10."
    )
    assert "dp_rank" in text_of(finding).remedies[0].change


def test_two_ranks_with_other_norms_are_a_tie(tmp_path):
    events = {rank: [over_tp(20, [0, 1], [0, 1], "final_norm.weight", tie=True)] for rank in range(2)}
    finding = decide(run(tmp_path, events))
    assert finding.ranks == (0, 1)
    assert text_of(finding).summary.startswith("Ranks 0 and 1 hold values of final_norm.weight that differ from each")
    assert "over tp" in text_of(finding).remedies[0].change


def leftovers():
    """A run of two pipelines of tensor-parallel groups, in one of which a rank reads its own samples."""
    event = {"kind": "event", "time_s": 1.0, **over_tp(20, [2], [0, 1, 2])}
    lines = {f"events/rank_{rank:05d}.jsonl": f"{json.dumps(event)}\n" for rank in range(3)}
    return {**run_files({"tp": 3}, "parallel: {tp: 3}", state="finished", step=40), **lines}


EXAMPLES = {"numeric.tp_divergence": Example(leftovers, (2,))}
