import sys

import pytest
import torch

from dtk.record.memory import STATUS, memory_record, peak_memory_bytes

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.skipif(not STATUS.exists(), reason="no /proc: only the system's own peak is known")
def test_the_peak_remembers_what_was_freed():
    size = peak_memory_bytes(CPU) + 64 * MIB
    block = torch.ones(size // 4)
    del block
    assert peak_memory_bytes(CPU) > size


def test_a_timeline_record_names_bytes():
    record = memory_record(CPU, 3)
    assert record["step"] == 3
    if sys.platform == "linux":
        assert record["peak_rss_bytes"] >= record["rss_bytes"] > MIB
    assert "allocated_bytes" not in record, "no CUDA: absent, never zero"
