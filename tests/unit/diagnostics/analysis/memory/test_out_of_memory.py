"""Figures of out-of-memory messages of torch 1.13 to 2.13, and whose memory they are."""

import pytest

from diagnostics.analysis.memory.out_of_memory import RanOut, ran_out
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, RankError
from tests.unit.diagnostics.causes.memory.oom_texts import CPU, FRAGMENTED, NCCL, OTHERS, job_of

GIB = 1 << 30


def of_text(text: str, **more) -> RanOut:
    error = RankError(3, "error.json", 0, "torch.OutOfMemoryError", text, **more)
    (record,) = ran_out(Evidence(root=None, limits=Limits(), errors=[error]))
    return record


@pytest.mark.parametrize("version", FRAGMENTED)
def test_every_version_gives_the_same_figures(version):
    record = of_text(FRAGMENTED[version])
    sizes = [record.requested_bytes, record.total_bytes, record.free_bytes, record.allocated_bytes, record.unused_bytes]
    assert [round(size / GIB, 2) for size in sizes] == [2.0, 39.59, 1.1, 25.0, 11.5]
    assert record.reserved_bytes == pytest.approx(36.5 * GIB)
    assert record.outside_bytes == pytest.approx(1.99 * GIB, rel=0.01)


def test_what_is_outside_is_shared_between_this_process_and_others():
    assert of_text(OTHERS).other_bytes == pytest.approx(20.09 * GIB, rel=0.01)
    assert of_text(NCCL).other_bytes == pytest.approx(0.09 * GIB, rel=0.1)
    assert of_text(NCCL).outside_bytes == pytest.approx(21.19 * GIB, rel=0.01)


def test_a_message_that_lists_several_processes_and_not_its_own_number():
    text = NCCL.replace(
        "Including non-PyTorch memory, this process has 38.40 GiB memory in use. ",
        "Process 11 has 17.60 GiB memory in use. Process 12 has 20.00 GiB memory in use. ",
    )
    assert of_text(text).other_bytes == pytest.approx(20.3 * GIB, rel=0.01)


def test_memory_that_is_shared_with_the_host_is_no_memory_outside():
    text = (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is "
        "free. Of the allocated memory 14.51 GiB is allocated by PyTorch, and 15.90 MiB is reserved by PyTorch but "
        "unallocated."
    )
    assert of_text(text).outside_bytes == 0


def test_without_figures_nothing_is_known():
    record = of_text("CUDA out of memory.")
    assert (record.requested_bytes, record.reserved_bytes, record.outside_bytes, record.other_bytes) == (
        None,
        None,
        None,
        0,
    )


def test_the_message_with_most_figures_counts_and_keeps_the_line_of_the_other():
    frames = [Frame("/x/torch/nn/functional.py", 9, "linear"), Frame("/home/me/train.py", 12, "main")]
    short = RankError(3, "error.json", 0, "torch.OutOfMemoryError", "CUDA out of memory.", frames=frames, step=7)
    full = RankError(3, "other.json", 0, "torch.OutOfMemoryError", FRAGMENTED["2.8"])
    for errors in ([short, full], [full, short]):
        (record,) = ran_out(Evidence(root=None, limits=Limits(), errors=errors))
        assert (record.item.file, record.step) == ("other.json", 7)
        assert record.site == frames[1]


def test_a_message_without_a_rank_gives_way_to_those_with_one():
    errors = [RankError(rank, "e.json", 0, "torch.OutOfMemoryError", NCCL) for rank in (None, 5, 2)]
    records = ran_out(Evidence(root=None, limits=Limits(), errors=errors))
    assert [record.rank for record in records] == [2, 5]
    assert [record.rank for record in ran_out(Evidence(root=None, limits=Limits(), errors=errors[:1]))] == [None]


def test_the_host_runs_out_of_memory_in_a_log_and_in_an_error_file(tmp_path):
    (record,) = ran_out(gather(job_of(tmp_path, CPU, "RuntimeError"), Limits()))
    assert (record.rank, record.device, record.requested_bytes) == (3, "cpu", 1 << 40)
    assert of_text(CPU).device == "cuda"  # by the type of the exception
    error = RankError(0, "error.json", 0, "RuntimeError", CPU)
    (record,) = ran_out(Evidence(root=None, limits=Limits(), errors=[error]))
    assert (record.device, record.requested_bytes) == ("cpu", 1 << 40)
    other = RankError(0, "error.json", 0, "RuntimeError", "shape mismatch")
    assert ran_out(Evidence(root=None, limits=Limits(), errors=[other])) == []
