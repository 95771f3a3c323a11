"""Presets, files of the user's own, and what is said when they are wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dtk.config.compose import compose
from dtk.config.folders import conf_folder, groups
from dtk.errors import DtkError
from dtk.plan.timing import hardware as module
from dtk.plan.timing.hardware import hardware_files, load_hardware, store_hardware
from dtk.record.metrics import peak_flops

PRESETS = ("a100_40", "a100_80", "b200", "cpu", "h100_sxm", "h200", "mi300x", "rtx4090")


@pytest.fixture(autouse=True)
def own_data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def plain(name: str = "h100_sxm") -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((conf_folder() / "hardware" / f"{name}.yaml").read_text(encoding="utf-8"))
    return values


def write(path: Path, values: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))
    return path


def test_all_presets_are_there_and_no_group_of_an_experiment() -> None:
    assert tuple(hardware_files()) == PRESETS
    assert "hardware" not in groups([conf_folder()])


@pytest.mark.parametrize("text", ["hardware=h100_sxm", "hardware.memory_bytes=1", "+hardware=cpu"])
def test_an_experiment_has_no_hardware(text: str) -> None:
    with pytest.raises(DtkError, match="use dtk plan hardware=NAME"):
        compose([text])


@pytest.mark.parametrize("name", PRESETS)
def test_each_figure_of_a_preset_has_a_source(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware.name == name
    for field in ("memory_bytes", "memory_bytes_per_s", "intra_node_bytes_per_s", "inter_node_latency_s"):
        source = hardware.sources[field]
        assert source.startswith("assumption: ") or "data sheet" in source or "white paper" in source
    assert hardware.intra_node.bytes_per_s >= hardware.inter_node.bytes_per_s
    assert hardware.matmul_rate("bfloat16") > 0


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "cpu"])
def test_the_peak_is_the_one_that_mfu_is_measured_against(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware.device is not None and hardware.matmul_fraction is not None
    for dtype in ("float32", "tf32", "bfloat16", "float16"):
        peak, _ = peak_flops(hardware.device, dtype)
        assert hardware.peak_flops[dtype] == peak
        assert hardware.matmul_rate(dtype) == pytest.approx(hardware.matmul_fraction * hardware.peak_flops[dtype])


def test_figures_of_a_data_sheet() -> None:
    h100 = load_hardware("h100_sxm")
    assert h100.peak_flops["bfloat16"] == 989.4e12
    assert h100.memory_bytes_per_s == 3.35e12
    assert h100.intra_node_bytes_per_s == 450e9  # 900 GB/s are both directions.
    assert h100.devices_per_node == 8
    assert h100.intra_node.bytes_per_s == pytest.approx(0.8 * 450e9)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(DtkError, match="did you mean hardware=h100_sxm") as error:
        load_hardware("h100_smx")
    assert "rtx4090" in str(error.value)
    with pytest.raises(DtkError, match="dtk plan --calibrate"):
        load_hardware("measured")
    with pytest.raises(DtkError, match="no such file"):
        load_hardware("nowhere/mine.yaml")


def test_a_file_of_the_users_own_by_folder_and_by_path(tmp_path: Path) -> None:
    mine = {**plain(), "name": "mine", "devices_per_node": {"value": 4, "source": "my own"}}
    path = write(tmp_path / "conf" / "hardware" / "mine.yaml", mine)
    for hardware in (load_hardware("mine", tmp_path / "conf"), load_hardware(str(path))):
        assert (hardware.name, hardware.devices_per_node) == ("mine", 4)
        assert hardware.sources["devices_per_node"] == "my own"
    with pytest.raises(DtkError, match="unknown hardware"):
        load_hardware("mine")


def test_what_is_stored_is_read_back(tmp_path: Path) -> None:
    for name in ("cpu", "h200"):
        hardware = load_hardware(name)
        store_hardware(hardware, tmp_path / "deep" / f"{name}.yaml")
        assert load_hardware(str(tmp_path / "deep" / f"{name}.yaml")) == hardware
    store_hardware(load_hardware("cpu"), module.measured_path())
    assert load_hardware("measured").matmul_flops == load_hardware("cpu").matmul_flops
    assert "measured" in hardware_files()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_byte": {"value": 1, "source": "x"}}, "unknown key memory_byte - did you mean memory_bytes"),
        ({"memory_bytes": None}, "lacks memory_bytes"),
        ({"memory_bytes": 8e9}, "memory_bytes needs value and source"),
        ({"memory_bytes": {"value": 8e9, "source": " "}}, "memory_bytes needs value and source"),
        ({"memory_bytes": {"value": "much", "source": "x"}}, "memory_bytes is 'much': it must be a whole number"),
        ({"memory_bytes_per_s": {"value": -1, "source": "x"}}, "it must be a number above 0"),
        ({"memory_fraction": {"value": 1.2, "source": "x"}}, "it must be a fraction of 1"),
        ({"link_fraction": {"value": True, "source": "x"}}, "it must be a fraction of 1"),
        ({"backend": "mpi"}, "write nccl or gloo"),
        ({"device": "NVIDIA H1000"}, "no published peak is known for the device NVIDIA H1000"),
        ({"peak_flops": {"value": {"float32": 1e12}, "source": "x"}}, "both give the peak"),
        ({"matmul_flops": {"value": {"float32": 1e12}, "source": "x"}}, "either matmul_flops or matmul_fraction"),
        ({"matmul_fraction": None}, "either matmul_flops or matmul_fraction"),
        ({"device": None}, "give device, peak_flops or matmul_flops"),
        ({"device": None, "peak_flops": {"value": {"float64": 1}, "source": "x"}}, "types: float32"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    values = {key: value for key, value in {**plain(), **change}.items() if value is not None}
    with pytest.raises(DtkError, match=message) as error:
        load_hardware(str(write(tmp_path / "mine.yaml", values)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", ""])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(DtkError, match=r"mine\.yaml"):
        load_hardware(str(tmp_path / "mine.yaml"))


def test_a_type_without_a_rate_is_named() -> None:
    cpu = load_hardware("cpu")
    assert cpu.matmul_rate("tf32") == cpu.matmul_rate("float32")
    with pytest.raises(DtkError, match="no rate for float8"):
        cpu.matmul_rate("float8")
