"""Out-of-memory texts of torch 1.13 to 2.13: fragmentation only where the request would have fitted in one piece."""

import pytest

from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.causes.memory.jobs import confirmed, findings
from tests.unit.diagnostics.causes.memory.oom_texts import CPU, FRAGMENTED, TRUE_DEMAND, error_file, job_of

GIB = 1 << 30


@pytest.mark.parametrize("version", FRAGMENTED)
def test_fragmentation_of_all_versions(tmp_path, version):
    kind = "torch.cuda.OutOfMemoryError" if version < "2.5" else "torch.OutOfMemoryError"
    result = findings(job_of(tmp_path, FRAGMENTED[version], kind))
    assert confirmed(result) == ["fragmentation"]
    finding = result["fragmentation"]
    assert finding.ranks == (3,)
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(11.5 * GIB)
    assert "expandable_segments" in text_of(finding).remedies[0].change
    assert "2 GiB" in text_of(finding).summary


def test_true_demand_is_neither(tmp_path):
    result = findings(job_of(tmp_path, TRUE_DEMAND))
    assert confirmed(result) == []
    assert result["fragmentation"].status == "ruled_out"
    assert result["non_torch"].status == "ruled_out"
    assert result["activations"].status == "undecided"
    assert text_of(result["activations"]).missing


@pytest.mark.parametrize("version", FRAGMENTED)
@pytest.mark.parametrize("request_size", ["12.00 GiB", "15.00 GiB", "64.00 GiB", "130206.04 GiB"])
def test_a_request_that_cannot_fit_is_no_fragmentation(tmp_path, version, request_size):
    """More than is unused, more than is unused and free, more than the device, more than any device."""
    text = FRAGMENTED[version].replace("Tried to allocate 2.00 GiB", f"Tried to allocate {request_size}")
    result = findings(job_of(tmp_path, text))
    assert confirmed(result) == []
    assert result["fragmentation"].status == "ruled_out"
    assert "would not fit even without fragmentation" in text_of(result["fragmentation"]).summary


def test_a_request_of_unknown_size_is_no_fragmentation(tmp_path):
    for size in ("more than 1EB memory", "an unreadable size"):  # The first one is no size of a tensor.
        text = FRAGMENTED["2.8"].replace("Tried to allocate 2.00 GiB", f"Tried to allocate {size}")
        result = findings(error_file(tmp_path, text))
        assert confirmed(result) == []
    assert "of unknown size" in text_of(result["fragmentation"]).summary


def test_a_request_beyond_the_share_of_the_device_that_is_allowed_is_no_fragmentation(tmp_path):
    """The process holds more than it is allowed to, as where memory is shared with the host."""
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is "
        "free. Of the allocated memory 14.51 GiB is allocated by PyTorch, and 5.90 GiB is reserved by PyTorch but "
        "unallocated."
    )
    assert confirmed(findings(job_of(tmp_path, text))) == []


def test_an_error_file_alone_is_enough(tmp_path):
    assert "fragmentation" in confirmed(findings(error_file(tmp_path, FRAGMENTED["2.8"])))


def test_cpu_out_of_memory_blames_no_allocator(tmp_path):
    result = findings(job_of(tmp_path, CPU, "RuntimeError"))
    assert confirmed(result) == ["host"]
    assert result["fragmentation"].status == "ruled_out"
    assert result["non_torch"].status == "ruled_out"


@pytest.mark.parametrize(("version", "named"), [("2.8", "PYTORCH_CUDA_ALLOC_CONF"), ("2.9", "PYTORCH_ALLOC_CONF")])
def test_the_line_and_the_variable_are_those_of_the_traceback(tmp_path, version, named):
    text = FRAGMENTED["2.8"].replace("PYTORCH_CUDA_ALLOC_CONF", named)
    finding = findings(job_of(tmp_path, text))["fragmentation"]
    assert [(place.rank, place.file, place.line) for place in finding.where] == [(3, "/home/me/train.py", 12)]
    assert text_of(finding).remedies[0].change == f"{named}=expandable_segments:True"


def test_both_variables_are_named_where_torch_is_unknown(tmp_path):
    text = FRAGMENTED["2.8"].partition(" If reserved")[0]
    change = text_of(findings(job_of(tmp_path, text))["fragmentation"]).remedies[0].change
    assert change == "PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9: PYTORCH_CUDA_ALLOC_CONF)"
