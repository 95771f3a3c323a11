import pytest

from dtk.record.metrics import DEFINITIONS, model_flops_utilization, peak_flops


@pytest.mark.parametrize(
    ("device", "dtype", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100-PCIE-40GB", "tf32", 156),
        ("NVIDIA A100 80GB PCIe", "float16", 312),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA H200", "float32", 67),
        ("NVIDIA B200", "bfloat16", 2250),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("NVIDIA L4", "float16", 121),
        ("Tesla V100-SXM2-16GB", "float16", 125),
        ("Tesla T4", "float16", 65),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("AMD Instinct MI250X", "bfloat16", 191.5),
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
    ],
)
def test_published_peaks(device, dtype, tera):
    peak, what = peak_flops(device, dtype)
    assert peak == pytest.approx(tera * 1e12)
    assert device in what


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16"),
        ("NVIDIA GeForce RTX 4090 D", "bfloat16"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16"),
        ("NVIDIA L40", "bfloat16"),
        ("Tesla T4", "bfloat16"),
        ("Tesla V100-SXM2-16GB", "tf32"),
        ("something else", "float32"),
    ],
)
def test_an_unknown_peak_is_null_with_a_reason_never_a_guess(device, dtype):
    peak, reason = peak_flops(device, dtype)
    assert peak is None
    assert device in reason
    assert model_flops_utilization(1000.0, 6, 2, peak, reason) == (None, reason)


def test_mfu_by_hand():
    # 8 devices of 1e15 FLOP/s at 4e6 tokens/s of a model with 1e9 FLOPs per token: 4e15 of 8e15.
    value, reason = model_flops_utilization(4e6, 10**9, 8, 1e15, "the peak")
    assert value == pytest.approx(0.5)
    assert "tokens_per_s * flops_per_token" in reason
    assert "the peak" in reason
    assert model_flops_utilization(4e6, None, 8, 1e15, "the peak")[0] is None


def test_definitions_are_sentences():
    for name in ("tokens_per_s", "step_time_s", "mfu", "peak_memory_bytes", "communicated_bytes_per_step", "loss"):
        assert len(DEFINITIONS[name].split()) > 4
