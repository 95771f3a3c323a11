"""Calibration: the fit on known lines, what becomes of the ranks' figures, the document, and once for real."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from diagnostics.report import terminal
from dtk.bench.calibrate import as_json, calibrate, document, fit
from dtk.errors import DtkError
from dtk.plan.timing.alpha_beta import Group, Link, algorithm_s
from dtk.plan.timing.hardware import Hardware, load_hardware, measured_path, store_hardware

SIZES = [4**i for i in range(5, 13)]


@given(latency_s=st.floats(1e-6, 1e-2), bytes_per_s=st.floats(1e7, 1e12), ranks=st.integers(2, 16))
def test_the_fit_finds_the_link_that_made_the_times(latency_s: float, bytes_per_s: float, ranks: int) -> None:
    group = Group(ranks, ranks, Link(latency_s, bytes_per_s), Link(1, 1))
    fixed, per_byte = fit(SIZES, [algorithm_s("ring", 2, size, group) for size in SIZES])
    assert fixed / (2 * (ranks - 1)) == pytest.approx(latency_s, rel=1e-3)
    # A bandwidth that the largest size hardly shows is not found to many digits.
    assert per_byte == pytest.approx(2 * (ranks - 1) / ranks / bytes_per_s, rel=1e-3, abs=1e-6 * fixed / SIZES[-1])


def test_the_fit_weighs_small_and_large_alike() -> None:
    exact = [1e-4 + size / 1e9 for size in SIZES]
    noisy = [t * (1.1 if i % 2 else 0.9) for i, t in enumerate(exact)]
    fixed, per_byte = fit(SIZES, noisy)
    assert fixed == pytest.approx(1e-4, rel=0.15)
    assert per_byte == pytest.approx(1e-9, rel=0.15)


def test_the_fit_has_no_negative_parts() -> None:
    assert fit([1, 2, 4], [1.0, 4.0, 16.0])[0] == 0
    assert fit([1, 1000], [2.0, 1.0])[1] == 0
    with pytest.raises(ValueError, match="two sizes"):
        fit([8, 8], [1.0, 1.0])


@pytest.mark.timeout(120)
def test_two_real_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    lines: list[str] = []
    hardware = calibrate(on_cpu=True, seconds=0.5, show=lines.append)
    assert measured_path() == tmp_path / "dtk" / "hardware" / "measured.yaml"
    assert load_hardware("measured") == hardware
    assert (hardware.backend, hardware.devices_per_node, hardware.peak_flops) == ("gloo", 2, {})
    # Any core since 2010, and no core yet made; a copy is read and write.
    assert 1e8 < hardware.matmul_rate("float32") < 1e13
    assert 1e8 < hardware.memory_rate < 1e12
    assert 1e-7 < hardware.intra_node.latency_s < 1
    assert 1e6 < hardware.intra_node.bytes_per_s < 1e12
    assert "all_reduce of 1024 to 16777216 bytes" in hardware.sources["intra_node_latency_s"]
    assert lines[0] == "starting 2 ranks on cpu"
    assert any("float32" in line for line in lines) and any("all_reduce" in line for line in lines)


@pytest.mark.timeout(120)
def test_a_rank_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "psutil.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DtkError, match=r"calibration failed on rank .*broken on purpose") as error:
        calibrate(on_cpu=True, seconds=0.1)
    assert "\n" not in str(error.value)
    assert not measured_path().exists()


FIGURES = (
    "devices_per_node",
    "memory_bytes",
    "matmul_flops",
    "memory_bytes_per_s",
    "memory_fraction",
    "intra_node_bytes_per_s",
    "intra_node_latency_s",
    "inter_node_bytes_per_s",
    "inter_node_latency_s",
    "link_fraction",
)
HARDWARE = Hardware(
    name="measured",
    backend="gloo",
    devices_per_node=2,
    memory_bytes=8 << 30,
    peak_flops={},
    matmul_flops={"float32": 40e9, "bfloat16": 12.34e9},
    memory_bytes_per_s=10 * 2**30,
    memory_fraction=1.0,
    intra_node_bytes_per_s=2 * 2**30,
    intra_node_latency_s=50e-6,
    inter_node_bytes_per_s=1.25e9,
    inter_node_latency_s=50e-6,
    link_fraction=0.5,
    sources=dict.fromkeys(FIGURES, "measured here"),
)


def test_the_figures_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    shown = terminal.render(document(HARDWARE), columns=None, colour=False)
    for text in (
        "float32 40 GFLOP/s, bfloat16 12.3 GFLOP/s",
        "10 GiB/s, 8 GiB per rank",
        "1 GiB/s",
        "hardware=measured",
    ):
        assert text in shown
    assert str(tmp_path / "dtk" / "hardware" / "measured.yaml") in shown.replace("\n", "")


def test_what_is_told_is_what_a_plan_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    text = as_json(HARDWARE)
    store_hardware(HARDWARE, Path(text["path"]))
    stored = load_hardware("measured")
    assert stored.matmul_rate("float32") == text["matmul_flops"]["float32"]
    assert stored.intra_node.bytes_per_s == text["intra_node_bytes_per_s"] * text["link_fraction"]
