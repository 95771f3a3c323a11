"""Out-of-memory texts of torch 1.13 to 2.13 become causes: fragmentation, memory outside PyTorch, or neither."""

import json

import pytest

from tests.unit.diagnostics.causes.memory.jobs import confirmed, findings

GIB = 1 << 30
FRAGMENTED = {
    "1.13": "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 39.59 GiB total capacity; 25.00 GiB already "
    "allocated; 1.10 GiB free; 36.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated"
    " memory try setting max_split_size_mb to avoid fragmentation.",
    "2.1": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 39.59 GiB of which 1.10"
    " GiB is free. Including non-PyTorch memory, this process has 38.40 GiB memory in use. Of the "
    "allocated memory 25.00 GiB is allocated by PyTorch, and 11.50 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
    "fragmentation.",
    "2.8": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.59 GiB of which "
    "1.10 GiB is free. Including non-PyTorch memory, this process has 38.40 GiB memory in use. Of the "
    "allocated memory 25.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., "
    "CUDA Graphs), and 11.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
}
TRUE_DEMAND = FRAGMENTED["2.8"].replace("25.00 GiB is", "36.20 GiB is").replace("11.50 GiB", "300.00 MiB")
OTHERS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.59 GiB of which "
    "1.10 GiB is free. Process 4711 has 20.00 GiB memory in use. Including non-PyTorch memory, this "
    "process has 18.40 GiB memory in use. Of the allocated memory 17.00 GiB is allocated by PyTorch, and "
    "300.00 MiB is reserved by PyTorch but unallocated."
)
NCCL = OTHERS.replace("Process 4711 has 20.00 GiB memory in use. ", "").replace("18.40 GiB", "38.40 GiB")
CPU = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate 1099511627776 bytes. Error code 12 (Cannot allocate memory)"
)


def job(folder, text: str, kind: str = "torch.OutOfMemoryError"):
    (folder / "rank3.log").write_text(
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/home/me/train.py", line 12, in <module>\n[rank3]:     loss = model(x)\n'
        f"[rank3]: {kind}: {text}\n"
    )
    return folder


def error_file(folder, text: str):
    record = {"message": {"message": f"OutOfMemoryError: {text}", "extraInfo": {"py_callstack": "", "timestamp": "1"}}}
    (folder / "error.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize("version", FRAGMENTED)
def test_fragmentation_of_all_versions(tmp_path, version):
    kind = "torch.cuda.OutOfMemoryError" if version < "2.5" else "torch.OutOfMemoryError"
    found = findings(job(tmp_path, FRAGMENTED[version], kind))
    assert confirmed(found) == ["fragmentation"]
    finding = found["fragmentation"]
    assert finding.ranks == (3,)
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(11.5 * GIB)
    assert "expandable_segments" in finding.remedies[0].change
    assert "2 GiB" in finding.summary


def test_true_demand_is_neither(tmp_path):
    found = findings(job(tmp_path, TRUE_DEMAND))
    assert confirmed(found) == []
    assert found["fragmentation"].status == "ruled_out"
    assert found["non_torch"].status == "ruled_out"
    assert found["activations"].status == "undecided"
    assert found["activations"].missing


def test_other_processes_on_the_device(tmp_path):
    found = findings(job(tmp_path, OTHERS))
    assert confirmed(found) == ["non_torch"]
    assert "other processes" in found["non_torch"].summary
    assert found["non_torch"].cost.value == pytest.approx(21.1 * GIB, rel=0.01)


def test_memory_of_this_process_outside_pytorch(tmp_path):
    found = findings(job(tmp_path, NCCL))
    assert confirmed(found) == ["non_torch"]
    assert "NCCL" in found["non_torch"].summary


def test_an_error_file_alone_is_enough(tmp_path):
    assert "fragmentation" in confirmed(findings(error_file(tmp_path, FRAGMENTED["2.8"])))


def test_cpu_out_of_memory_blames_no_allocator(tmp_path):
    found = findings(job(tmp_path, CPU, "RuntimeError"))
    assert confirmed(found) == []
    assert found["fragmentation"].status == "ruled_out"
    assert found["non_torch"].status == "ruled_out"


@pytest.mark.parametrize(("version", "named"), [("2.8", "PYTORCH_CUDA_ALLOC_CONF"), ("2.9", "PYTORCH_ALLOC_CONF")])
def test_the_line_and_the_variable_are_those_of_the_traceback(tmp_path, version, named):
    text = FRAGMENTED["2.8"].replace("PYTORCH_CUDA_ALLOC_CONF", named)
    finding = findings(job(tmp_path, text))["fragmentation"]
    assert [(place.rank, place.file, place.line) for place in finding.where] == [(3, "/home/me/train.py", 12)]
    assert finding.remedies[0].change == f"{named}=expandable_segments:True"


def test_both_variables_are_named_where_torch_is_unknown(tmp_path):
    text = FRAGMENTED["2.8"].partition(" If reserved")[0]
    change = findings(job(tmp_path, text))["fragmentation"].remedies[0].change
    assert change == "PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9: PYTORCH_CUDA_ALLOC_CONF)"
