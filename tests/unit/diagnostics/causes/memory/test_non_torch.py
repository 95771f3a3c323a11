"""Memory that neither this process's allocator nor nobody holds: other processes, NCCL and libraries."""

import pytest

from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.causes.memory.jobs import confirmed, findings
from tests.unit.diagnostics.causes.memory.oom_texts import NCCL, OTHERS, TRUE_DEMAND, job_of

GIB = 1 << 30
HEAD = "CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of 39.49 GiB of which 119.38 MiB "
UNLISTED = {
    "2.1": HEAD + "is free. Including non-PyTorch memory, this process has 8.38 GiB memory in use. Of the allocated "
    "memory 7.96 GiB is allocated by PyTorch, and 7.73 MiB is reserved by PyTorch but unallocated.",
    "2.8": HEAD + "is free. Including non-PyTorch memory, this process has 8.38 GiB memory in use. Of the allocated "
    "memory 7.96 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and "
    "7.73 MiB is reserved by PyTorch but unallocated.",
}


def test_other_processes_on_the_device(tmp_path):
    result = findings(job_of(tmp_path, OTHERS))
    assert confirmed(result) == ["non_torch"]
    assert "other processes" in text_of(result["non_torch"]).summary
    assert result["non_torch"].cost.value == pytest.approx(20.09 * GIB, rel=0.01)


@pytest.mark.parametrize("version", UNLISTED)
def test_other_processes_that_the_message_does_not_list(tmp_path, version):
    """Total - free - this process, as in a container, where torch does not see the other processes."""
    result = findings(job_of(tmp_path, UNLISTED[version]))
    assert confirmed(result) == ["non_torch"]
    assert "31 GiB of 39.5 GiB is held by other processes" in text_of(result["non_torch"]).summary
    assert result["non_torch"].cost.value == pytest.approx(30.99 * GIB, rel=0.01)
    assert result["non_torch"].ranks == (3,)


def test_torch_1_gives_the_sum_that_it_reserves(tmp_path):
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 39.59 GiB total capacity; 7.00 GiB already allocated; "
        "1.10 GiB free; 8.00 GiB reserved in total by PyTorch)"
    )
    result = findings(job_of(tmp_path, text, "RuntimeError"))
    assert confirmed(result) == ["non_torch"]
    assert result["non_torch"].cost.value == pytest.approx(30.49 * GIB, rel=0.01)


def test_a_process_that_does_not_recognise_its_own_number_is_no_other_process(tmp_path):
    """In a container torch lists its own process by the number that the host gives it."""
    text = TRUE_DEMAND.replace("Including non-PyTorch memory, this process has", "Process 20398 has")
    assert confirmed(findings(job_of(tmp_path, text))) == []
    nccl = NCCL.replace("Including non-PyTorch memory, this process has", "Process 20398 has")
    text = text_of(findings(job_of(tmp_path, nccl.replace("17.00 GiB", "30.00 GiB")))["non_torch"]).summary
    assert "other processes" not in text


def test_memory_of_this_process_outside_pytorch(tmp_path):
    result = findings(job_of(tmp_path, NCCL))
    assert confirmed(result) == ["non_torch"]
    assert "NCCL" in text_of(result["non_torch"]).summary


def test_a_limit_that_the_process_set_itself_is_not_the_memory_of_others(tmp_path):
    """`set_per_process_memory_fraction`: the device has more than enough free."""
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.59 GiB of which 20.00 GiB is "
        "free. Including non-PyTorch memory, this process has 9.40 GiB memory in use. 9.00 GiB allowed; Of the "
        "allocated memory 8.90 GiB is allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated."
    )
    assert confirmed(findings(job_of(tmp_path, text))) == []


def test_a_context_and_a_communicator_belong_to_every_job(tmp_path):
    text = (
        "CUDA out of memory. Tried to allocate 978.00 MiB (GPU 0; 4.00 GiB total capacity; 1.68 GiB already allocated; "
    )
    text += "0 bytes free; 2.72 GiB reserved in total by PyTorch)"
    assert confirmed(findings(job_of(tmp_path, text, "RuntimeError"))) == ["fragmentation"]
