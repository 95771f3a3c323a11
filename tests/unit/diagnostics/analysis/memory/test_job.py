"""What is derived of what was read: capacity, predicted peaks, ranks of a collective, where ranks ran out."""

import pytest

from diagnostics.analysis.memory.job import JobMemory, RankMemory, read
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.analysis.memory.out_of_memory import RanOut
from diagnostics.contract.findings import EvidenceItem
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame
from diagnostics.evidence.readers.timeline import DeviceSamples, StepMemory, Timeline
from tests.unit.diagnostics.causes.memory import examples

ITEM = EvidenceItem("log", "a.log", "text", 1)


def job(size: ModelSize, *peaks: int) -> JobMemory:
    ranks = {}
    for rank, peak in enumerate(peaks):
        step = StepMemory(1, 0.0, None, peak_allocated_bytes=peak, allocated_bytes=peak, reserved_bytes=peak)
        ranks[rank] = RankMemory(rank, timeline=Timeline([step]), timeline_file=f"rank_{rank}.jsonl")
    return JobMemory(Evidence(root=None, limits=Limits()), size, ranks)


def test_states_shrink_copies_grow_and_what_is_gathered_stays():
    sharded = ModelSize(4, "fsdp", 1024, 1024, 2048, "test", 4)  # 4096 bytes of states, 1024 a rank
    result = job(sharded, 5000).predicted(fixed_bytes=1000)
    assert (result.peak_bytes, result.without_bytes) == (5000 - 1024 + 64, 4000 - 1024 + 64)
    result = job(sharded, 5000).predicted(linear_bytes=400)
    assert result.peak_bytes - result.without_bytes == 64 * 400 // 4


def test_nothing_is_predicted_without_a_peak_or_for_fewer_ranks():
    assert job(ModelSize(4, "ddp")).predicted() is None
    assert job(ModelSize(None, ""), 5).predicted() is None
    assert job(ModelSize(64, ""), 5).predicted() is None


def test_the_peak_is_that_of_the_fullest_rank():
    job_memory = job(ModelSize(3, ""), 5, 900, 70)
    assert job_memory.peak() == 900
    assert [job_memory.peak_bytes(rank) for rank in job_memory.ranks.values()] == [5, 900, 70]
    assert job(ModelSize(3, "")).peak() is None


def test_capacity_is_the_message_then_the_smallest_device_then_the_node():
    job_memory = job(ModelSize(2, ""), 5)
    assert job_memory.capacity() is None
    job_memory.nodes[0] = Timeline(rank_rss={0: [], 1: []}, host_total_bytes=1000)
    assert job_memory.capacity().size_bytes == 500
    job_memory.nodes[0].devices = {0: DeviceSamples(80), 1: DeviceSamples(40), 2: DeviceSamples(None)}
    assert (job_memory.capacity().size_bytes, job_memory.capacity().source) == (40, "telemetry")
    job_memory.ran_out = [RanOut(0, "cuda", ITEM, total_bytes=30, limit_bytes=20)]
    assert (job_memory.capacity().size_bytes, job_memory.capacity().source) == (20, "a.log")


@pytest.mark.parametrize(("group", "ranks"), [(4, (0, 1, 2, 3)), (2, (1, 3)), (0, (1, 3))])
def test_a_collective_of_the_whole_job_was_issued_by_all_ranks(group, ranks):
    assert job(ModelSize(4, "")).ranks_of([3, 1, 3], group) == ranks


def test_lines_are_those_of_the_named_ranks():
    job_memory = job(ModelSize(4, ""))
    job_memory.ran_out = [
        RanOut(rank, "cuda", ITEM, site=Frame("/home/me/train.py", 10 + rank, "main")) for rank in range(4)
    ]
    assert [(rank, at.line) for rank, at in job_memory.ran_out_at((1, 3))] == [(1, 11), (3, 13)]
    assert job_memory.ran_out_at(()) == []


@pytest.mark.parametrize(
    ("example", "on_cpu"), [("large_activations", False), ("full_state_dict", True), ("fragmented", False)]
)
def test_where_tensors_are(tmp_path, example, on_cpu):
    for name, text in getattr(examples, example)().items():
        (tmp_path / name).write_text(text)
    assert read(gather(tmp_path, Limits()), JobMemory).on_cpu is on_cpu
