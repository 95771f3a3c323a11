"""Stages of a pipeline that disagree about the micro-batches of a step, or about the size of messages."""

import json

import pytest

from diagnostics.analysis.stall.circular import circular_waits
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.hang import p2p_cycle, pipeline_mismatch
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, Stacks, Thread
from diagnostics.evidence.ring.format import RAISED, STARTED
from diagnostics.tree.arbitrate import arbitrate
from diagnostics.tree.load import built_in
from tests.unit.diagnostics.analysis.calls import call, job as job_of
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.hang.test_all_to_all_splits import decide, splits
from tests.unit.diagnostics.ring_bytes import RingCall, ring, run_files

EVEN = [4, 4, 4, 4]


def stage(own, peer, count, numel=64, step=1):
    """A step of one of two stages with so many micro-batches."""
    kinds = ("isend", "irecv") if own == 0 else ("irecv", "isend")
    return [RingCall(op, numel, peer, step=step) for _ in range(count) for op in kinds]


def pipeline(last=3, numel=64, waits=True, before=True, state=STARTED):
    """Two stages of which the second runs `last` of four micro-batches in step 2, with messages of `numel` elements."""
    first = [*(stage(0, 1, 4) if before else []), *stage(0, 1, 4, step=2)]
    second = [
        *(stage(1, 0, 4) if before else []),
        *stage(1, 0, last, numel, step=2),
        RingCall("all_reduce", state=state, step=2),
    ]
    return {
        **run_files({"pp": 2}, "parallel: {pp: 2}"),
        "flight/rank_00000.ring": ring(0, 2, first),
        "flight/rank_00001.ring": ring(1, 2, second),
        "heartbeat/rank_00000.json": beat("recv 256 B pp" if waits else "data"),
    }


def beat(region):
    """The heartbeat of a rank that is in a region of step 2."""
    where = {"beat": 9, "step": 2, "region": region, "time_s": 1.0, "pid": 1, "host": "n", "attempt": 0, "beat_end": 9}
    return json.dumps(where)


def test_the_stage_that_ran_fewer_micro_batches_than_before_is_to_blame(tmp_path):
    finding = decide(pipeline_mismatch, pipeline(), tmp_path)
    assert (finding.status, finding.ranks, finding.victims, finding.step) == ("confirmed", (1,), (0,), 2)
    assert "stage 1 (rank 1) sent 3 messages and continued, and stage 0 (rank 0) waits" in text_of(finding).summary


def test_a_collective_that_raised_as_its_peers_were_ended_was_reached_too(tmp_path):
    """Whoever is ended first takes its connections along, so the other's call raises before it is dumped."""
    finding = decide(pipeline_mismatch, pipeline(state=RAISED), tmp_path)
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (1,), (0,))


def test_a_stage_that_is_held_up_inside_itself_sends_its_message_later(tmp_path):
    """Of two stages of two tensor-parallel ranks each, rank 2 waits for rank 3 in the middle of a micro-batch."""
    held_up = [*stage(2, 0, 4), *stage(2, 0, 3, step=2), RingCall("all_reduce", state=STARTED, step=2)]
    files = {
        **run_files({"pp": 2, "tp": 2}, "parallel: {pp: 2, tp: 2}"),
        "flight/rank_00000.ring": ring(0, 4, [*stage(0, 2, 4), *stage(0, 2, 4, step=2)]),
        "flight/rank_00002.ring": ring(2, 4, held_up, members="2-3"),
        "heartbeat/rank_00000.json": beat("recv 256 B pp"),
    }
    assert decide(pipeline_mismatch, files, tmp_path).status == "ruled_out"
    files["flight/rank_00002.ring"] = ring(2, 4, held_up)
    assert decide(pipeline_mismatch, files, tmp_path / "all").status == "confirmed"


def test_ranks_that_share_the_micro_batches_of_a_stage_are_to_blame_together(tmp_path):
    """Two stages of two tensor-parallel ranks each, of which the second runs three of four micro-batches."""
    files = run_files({"pp": 2, "tp": 2}, "parallel: {pp: 2, tp: 2}")
    for rank, peer in ((0, 2), (1, 3)):
        fewer = [*stage(2, rank, 4), *stage(2, rank, 3, step=2), RingCall("all_reduce", state=STARTED, step=2)]
        files[f"flight/rank_{rank:05d}.ring"] = ring(rank, 4, [*stage(0, peer, 4), *stage(0, peer, 4, step=2)])
        files[f"flight/rank_{peer:05d}.ring"] = ring(peer, 4, fewer)
        files[f"heartbeat/rank_{rank:05d}.json"] = beat("recv 256 B pp")
    finding = decide(pipeline_mismatch, files, tmp_path)
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (2, 3), (0, 1))
    assert (finding.group.ranks, finding.group.desc) == ((0, 1, 2, 3), "2 pp groups")
    assert "not known which side" not in text_of(finding).summary


def data_parallel(numbers):
    """Two pipelines of two stages, in whose last backward both ranks of a stage reduce gradients.

    `numbers`: rank -> (sends, receives) in step 2, in which the first pipeline's ranks are 0 and 2.
    """
    files = run_files({"pp": 2, "dp_shard": 2}, "parallel: {pp: 2}")
    for rank, (sends, receives) in numbers.items():
        peer = (rank + 2) % 4
        mine = [*(RingCall("isend", 64, peer, step=2) for _ in range(sends))]
        mine += [RingCall("irecv", 64, peer, step=2) for _ in range(receives)]
        if rank in (0, 3):  # It waits for the other rank of its stage, which waits for a message.
            mine.append(RingCall("reduce_scatter", state=STARTED, step=2))
        else:
            files[f"heartbeat/rank_{rank:05d}.json"] = beat("recv 256 B pp")
        members = "0-1" if rank < 2 else "2-3"
        files[f"flight/rank_{rank:05d}.ring"] = ring(rank, 4, [*stage(rank, peer, 4), *mine], members=members)
    return files


def test_a_stage_that_already_reduces_gradients_has_no_more_to_send_forward(tmp_path):
    """The last stage does: the gradient of the micro-batch in whose backward it reduces them."""
    finding = decide(pipeline_mismatch, data_parallel({0: (3, 3), 2: (3, 4), 3: (3, 4), 1: (4, 4)}), tmp_path)
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (0,), (2,))
    assert "stage 0 (rank 0) sent 3 messages and continued, and stage 1 (rank 2) waits" in text_of(finding).summary
    even = data_parallel({0: (4, 4), 2: (3, 4), 3: (3, 4), 1: (4, 4)})
    assert decide(pipeline_mismatch, even, tmp_path / "even").status == "ruled_out"


def test_a_last_stage_that_lacks_two_gradients_ran_fewer_micro_batches(tmp_path):
    finding = decide(pipeline_mismatch, data_parallel({0: (4, 4), 2: (3, 4), 3: (2, 3), 1: (4, 4)}), tmp_path)
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (3,), (1,))


def test_in_the_first_step_nobody_can_say_who_is_right(tmp_path):
    assert decide(pipeline_mismatch, pipeline(before=False), tmp_path).ranks == (0, 1)


def test_messages_of_another_size(tmp_path):
    finding = decide(pipeline_mismatch, pipeline(last=4, numel=32, waits=False), tmp_path)
    assert (
        finding.ranks == (1,) and "64 elements" in text_of(finding).summary and "expects 32" in text_of(finding).summary
    )


def test_a_neighbour_that_does_not_wait_for_a_message_is_no_mismatch(tmp_path):
    """Of two ranks under way, one is always further."""
    assert decide(pipeline_mismatch, pipeline(waits=False), tmp_path).status == "ruled_out"
    assert decide(pipeline_mismatch, pipeline(last=4), tmp_path / "even").status == "ruled_out"


def test_without_a_pipeline_it_is_ruled_out(tmp_path):
    files = {**run_files({"tp": 4}), **splits()}
    assert decide(pipeline_mismatch, files, tmp_path).status == "ruled_out"


def test_without_rings_it_is_open(tmp_path):
    (result,) = pipeline_mismatch.CAUSE.decide(explain(Evidence(root=tmp_path, limits=Limits())))
    assert result.status == "undecided" and text_of(result).missing


EXAMPLES = {"hang.pipeline_mismatch": Example(pipeline, (1,))}


WITHIN = Frame("/lib/torch/distributed/pipelining/schedules.py", 683, "_wait_batch_p2p")
OWN = Frame("/job/train.py", 10, "main")


def stall(calls):
    """What explains that ranks with these last calls wait within torch's schedule of a pipeline."""
    stacks = [Stacks(rank, f"{rank}.txt", (Thread("MainThread", (WITHIN, OWN), True),)) for rank in calls]
    return Stall(job := job_of(calls, len(calls), stacks=stacks), circular=tuple(circular_waits(job)))


def message(kind, peer):
    return [call(1, 10, kind, 4, done=False, p2p=kind, peer=peer)]


def test_a_cycle_within_torchs_schedules_is_no_matter_of_order():
    both = {0: message("recv", 1), 1: message("recv", 0)}
    (result,) = pipeline_mismatch.CAUSE.decide(stall(both))
    assert (result.status, result.ranks) == ("confirmed", (0, 1)) and "one schedule" in text_of(result).summary
    assert arbitrate(built_in(), [*p2p_cycle.CAUSE.decide(stall(both)), result]).roots == (result,)


_LOSS = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 17, in main
[rank1]:     schedule.step(target=y)
[rank1]:   File "/opt/venv/site-packages/torch/distributed/pipelining/{file}", line 2015, in {function}
[rank1]:     loss = loss_fn(
[rank1]:   File "/job/train.py", line 10, in loss
[rank1]:     return (out - target).square().mean()
[rank1]: RuntimeError: {text}
"""
_DIFFERS = "The size of tensor a (8) must match the size of tensor b (4) at non-singleton dimension"
_OF_BATCHES = "Expected input batch_size (8) to match target batch_size (4)."


@pytest.mark.parametrize(
    ("text", "file", "function", "cause"),
    [
        (f"{_DIFFERS} 0", "stage.py", "_backward_metadata_inference", "hang.pipeline_mismatch"),
        (_OF_BATCHES, "schedules.py", "_compute_loss", "hang.pipeline_mismatch"),
        (f"{_DIFFERS} 1", "schedules.py", "_compute_loss", "hang.rank_raised"),
        (f"{_DIFFERS} 0", "stage.py", "forward_maybe_with_nosync", "hang.rank_raised"),
    ],
)
def test_targets_of_another_batch_than_the_outputs_blame_no_rank(tmp_path, text, file, function, cause):
    (tmp_path / "log").write_text(_LOSS.format(text=text, file=file, function=function))
    first = diagnose(tmp_path).root_causes[0]
    assert first.cause == cause
    if cause == "hang.pipeline_mismatch":
        assert (first.ranks, first.victims) == ((), (1,))
        assert "micro-batches of 8 samples, the other of 4" in text_of(first).summary
