"""Copies of all ranks: lists and objects by nature, one tensor only where line and peak are known."""

import pytest

from diagnostics.analysis.memory.curve import Allocation, Curve
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.causes.memory.replicated_gather import decide
from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.causes.memory.gathering import MIB, SITE, call, job, sharded


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"is_list": True}, "confirmed"),
        ({"kind": "object", "op": "all_gather_object"}, "confirmed"),
        ({"site": SITE}, "confirmed"),
        ({}, "ruled_out"),  # a parallel layer may compute with it
        ({"is_list": True, "region": "checkpoint.save"}, "ruled_out"),
        ({"is_list": True, "ranks": 1}, "ruled_out"),
    ],
)
def test_what_counts_as_copies(more, status):
    assert decide(job(sharded(), call(**{"kind": "user", "mib": 20, **more}))).status == status


def test_small_outputs_are_none():
    finding = decide(job(sharded(), call("user", 4, is_list=True)))
    assert (finding.status, text_of(finding).summary) == ("ruled_out", "No gather that the code issues is large.")
    assert decide(job(ModelSize(2, ""), call("user", 63, is_list=True))).status == "ruled_out"
    assert decide(job(ModelSize(2, ""), call("user", 64, is_list=True))).status == "confirmed"


def test_what_is_scattered_again_is_sequence_parallelism():
    jobs = job(sharded(), call("user", 20, is_list=True))
    for rank in jobs.ranks.values():
        rank.trace.scattered.add(20 * MIB)
    assert decide(jobs).status == "ruled_out"


@pytest.mark.parametrize(
    ("more", "change"),
    [
        ({"is_list": True}, "reduce before you gather at train.py:58"),
        ({"is_list": True, "like_parameter": True}, "do not gather parameters or gradients at train.py:58"),
        ({"kind": "object"}, "gather tensors of fixed size"),
    ],
)
def test_remedies_fit_what_is_collected(more, change):
    finding = decide(job(sharded(), call(**{"kind": "user", "mib": 20, "site": SITE, **more})))
    assert finding.ranks == (0, 1)
    assert finding.cost.value == 20 * MIB
    assert text_of(finding).remedies[0].change.startswith(change)
    assert "from each of the 2 ranks" in text_of(finding).summary


@pytest.mark.parametrize(("ranks", "steps", "status"), [(1, 2, "ruled_out"), (2, 2, "confirmed"), (1, 3, "confirmed")])
def test_outputs_that_one_rank_seems_to_retain_for_two_steps_are_no_proof(ranks, steps, status):
    jobs = job(sharded(), call("user", 20))
    for rank in jobs.ranks.values():
        kept = range(steps if rank.rank < ranks else 0)
        blocks = [Allocation(20 * MIB, step * 10.0, step, "forward", "", gathered=True) for step in kept]
        rank.curve = Curve(0, 0, allocations=blocks)
    assert decide(jobs).status == status


@pytest.mark.parametrize(("kept", "status"), [(2, "ruled_out"), (8, "confirmed")])
def test_single_outputs_of_many_that_seem_to_stay_are_no_proof(kept, status):
    """gloo's threads release buffers unrecorded on a busy host: 2 of 16 of a size, at other calls in each step."""
    jobs = job(sharded(), call("user", 20))
    for rank in jobs.ranks.values():
        blocks = [
            Allocation(
                20 * MIB, step * 100.0 + n, step, "forward", "", gathered=True, end_us=None if n < kept else 500.0
            )
            for step in range(2)
            for n in range(16)
        ]
        rank.curve = Curve(0, 0, allocations=blocks)
    assert decide(jobs).status == status
