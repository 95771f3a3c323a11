"""The document of a calibration names every figure, where it is kept, and what to type next."""

from pathlib import Path

import pytest

from diagnostics.report import terminal
from dtk.bench.calibrate import as_json, document
from dtk.plan.timing.hardware import Hardware, load_hardware, store_hardware

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
    told = as_json(HARDWARE)
    store_hardware(HARDWARE, Path(told["path"]))
    stored = load_hardware("measured")
    assert stored.matmul_rate("float32") == told["matmul_flops"]["float32"]
    assert stored.intra_node.bytes_per_s == told["intra_node_bytes_per_s"] * told["link_fraction"]
