import sys

import pytest
import torch

from dtk.record.memory import STATUS, is_out_of_memory, memory_record, peak_memory_bytes, reset_peak_memory

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.skipif(not STATUS.exists(), reason="no /proc: the peak can not be reset here")
def test_the_peak_remembers_what_was_freed_and_can_begin_anew():
    reset_peak_memory(CPU)
    before = peak_memory_bytes(CPU)
    block = torch.ones(64 * MIB // 4)
    del block
    after = peak_memory_bytes(CPU)
    assert after - before > 50 * MIB
    if not reset_peak_memory(CPU):
        pytest.skip("/proc/self/clear_refs can not be written here")
    assert after - peak_memory_bytes(CPU) > 50 * MIB


def test_a_timeline_record_names_bytes():
    record = memory_record(CPU, 3)
    assert record["step"] == 3
    if sys.platform == "linux":
        assert record["peak_rss_bytes"] >= record["rss_bytes"] > MIB
    assert "allocated_bytes" not in record, "no CUDA: absent, never zero"


def test_only_the_allocators_error_is_out_of_memory():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("out of memory"))
