"""Capabilities of a device and its node: from the presets of conf/hardware, a user's file, or local measurements."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from diagnostics.contract.files import read_record, replacing
from diagnostics.contract.suggest import did_you_mean
from diagnostics.evidence.limits import Limits, load_yaml
from dtk.config.folders import HARDWARE, search_path
from dtk.errors import Errors, refused
from dtk.plan.timing.alpha_beta import Link
from dtk.record.metrics import published_peaks

_errors = Errors(__file__)
MEASURED = "measured"  # Name under which `dtk plan --calibrate` stores its measurements.
DTYPES = ("float32", "tf32", "bfloat16", "float16")  # Dtypes of matrix products.
_PLAIN = ("name", "device", "backend")
_TABLES = ("peak_flops", "matmul_flops")
_OPTIONAL = ("device", *_TABLES, "matmul_fraction", "host_memory_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """One kind of device in one kind of node. Every figure has an entry in `sources`."""

    name: str
    device: str | None = None
    """The device's name in torch; its peaks are then those that MFU uses."""
    backend: Literal["nccl", "gloo"]
    """Backend; with gloo, collectives run on the host's cores, and waiting for one blocks the host."""
    devices_per_node: int
    memory_bytes: int
    """Memory of one device that tensors can use."""
    peak_flops: Mapping[str, float]
    """Published dense FLOP/s by dtype; empty if unpublished."""
    matmul_flops: Mapping[str, float]
    """FLOP/s that large matrix products reach, by dtype."""
    matmul_fraction: float | None = None
    """Fraction of `peak_flops` that gives `matmul_flops`; None if measured."""
    memory_bytes_per_s: float
    memory_fraction: float
    """Fraction of `memory_bytes_per_s` that streaming kernels reach."""
    intra_node_bytes_per_s: float
    """Bandwidth of one device to the others of its node, in one direction."""
    intra_node_latency_s: float
    """Latency of one step between two devices of a node."""
    inter_node_bytes_per_s: float
    """One device's part of the bandwidth of the node's network adapters, in one direction."""
    inter_node_latency_s: float
    link_fraction: float
    """Fraction of both links' bandwidth that large collectives reach."""
    host_memory_bytes: int | None = None
    """Usable host memory of a node for offloading; None if unknown."""
    sources: Mapping[str, str]
    """Name of a figure -> where it is published, or why it is assumed."""

    def matmul_rate(self, dtype: str) -> float:
        """Return the FLOP/s of matrix products in a dtype, for tf32 those of float32 if unknown; else DtkError."""
        if dtype == "tf32" and dtype not in self.matmul_flops:
            dtype = "float32"
        if dtype not in self.matmul_flops:
            raise _errors("rate", name=self.name, dtype=dtype, known=[*self.matmul_flops])
        return self.matmul_flops[dtype]

    @property
    def memory_rate(self) -> float:
        """Bytes/s that streaming kernels reach on device memory."""
        return self.memory_bytes_per_s * self.memory_fraction

    @property
    def intra_node(self) -> Link:
        """Bandwidth and latency of collectives inside a node."""
        return Link(self.intra_node_latency_s, self.intra_node_bytes_per_s * self.link_fraction)

    @property
    def inter_node(self) -> Link:
        """Bandwidth and latency of collectives between nodes, per device."""
        return Link(self.inter_node_latency_s, self.inter_node_bytes_per_s * self.link_fraction)


_OTHERS = (*_PLAIN, *_TABLES, "sources")
_FIGURES = tuple(field.name for field in dataclasses.fields(Hardware) if field.name not in _OTHERS)


def hardware_files(config_dir: Path | None = None) -> dict[str, Path]:
    """Return name -> file of dtk's presets, the user's files, which take precedence, and `measured` if it exists."""
    presets: dict[str, Path] = {}
    for folder in reversed(search_path(config_dir)):
        presets.update({path.stem: path for path in sorted((folder / HARDWARE).glob("*.yaml"))})
    if measured_path().is_file():
        presets[MEASURED] = measured_path()
    return dict(sorted(presets.items()))


def measured_path() -> Path:
    """Return where calibration stores its result: `hardware/measured.yaml` in dtk's user data folder.

    That is `$XDG_DATA_HOME/dtk`, by default `~/.local/share/dtk` (XDG base directory specification).
    """
    chosen = os.environ.get("XDG_DATA_HOME", "")
    # The specification requires that relative paths are ignored.
    base = Path(chosen) if os.path.isabs(chosen) else Path.home() / ".local" / "share"  # noqa: PTH117
    return base / "dtk" / HARDWARE / f"{MEASURED}.yaml"


def load_hardware(name: str, config_dir: Path | None = None) -> Hardware:
    """Return the hardware that `hardware=NAME` selects.

    It is a preset, a file of `config_dir/hardware`, `measured`, or the path of a YAML file. DtkError if the hardware
    does not exist, or its file has missing, unknown or impossible values.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name).expanduser()
        if not path.is_file():
            kind = "a folder" if path.is_dir() else "a device or a pipe"
            why = f"it is {kind}, not a YAML file" if path.exists() else "there is no such file"
            raise _errors("file", name=name, why=why)
        return _read(path)
    files = hardware_files(config_dir)
    if name not in files:
        row, near = "not_measured" if name == MEASURED else "unknown", did_you_mean(name, files, "hardware=")
        raise _errors(row, name=name, near=near, options=[*files])
    return _read(files[name])


def store_hardware(hardware: Hardware, path: Path) -> None:
    """Write a file for `load_hardware`, and create its folders; DtkError if the file cannot be written."""
    plain: dict[str, Any] = {"name": hardware.name, "backend": hardware.backend}
    if hardware.device:
        plain["device"] = hardware.device
    for key in (*_TABLES, *_FIGURES):
        value = getattr(hardware, key)
        derived = (key == "peak_flops" and hardware.device) or (key == "matmul_flops" and hardware.matmul_fraction)
        if value and not derived:
            value = dict(value) if isinstance(value, Mapping) else value
            plain[key] = {"value": value, "source": hardware.sources[key]}
    head = f"# {hardware.name}: written by dtk.\n# Use: dtk plan hardware={hardware.name}\n"
    with refused(f"{path} cannot be written", "set XDG_DATA_HOME to a writable folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            aside.write_text(head + yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")


def _read(path: Path) -> Hardware:
    """Read one file and check every key; raises as `load_hardware` does."""
    with refused(f"{path} cannot be read as YAML", "", ValueError):
        plain = load_yaml(read_record(path), Limits())
    if not isinstance(plain, dict):
        raise _errors("mapping", path=path)
    allowed = (*_PLAIN, *_TABLES, *_FIGURES)
    if unknown := [str(key) for key in plain if key not in allowed]:
        near = did_you_mean(unknown[0], allowed) or f"keys: {', '.join(allowed)}"
        raise _errors("key", path=path, key=unknown[0], near=near)
    missing = [key for key in allowed if key not in plain and key not in _OPTIONAL]
    both_or_none = ("matmul_flops" in plain) == ("matmul_fraction" in plain)
    _errors.refuse({"matmul": both_or_none, "missing": missing}, path=path, missing=missing)
    device = plain.get("device")
    values: dict[str, Any] = {"name": str(plain["name"]), "device": device, "backend": plain["backend"]}
    _errors.refuse({"backend": values["backend"] not in ("nccl", "gloo")}, path=path, backend=values["backend"])
    sources: dict[str, str] = {}
    for key in (*_TABLES, *_FIGURES):
        if key in plain:
            entry = plain[key]
            if not isinstance(entry, dict) or set(entry) != {"value", "source"} or not str(entry["source"]).strip():
                raise _errors("entry", path=path, key=key)
            values[key], sources[key] = _figure(key, entry["value"], path), str(entry["source"])
    if device is not None:
        peaks, source = published_peaks(device) if isinstance(device, str) else ({}, "")
        rules = {"two_peaks": "peak_flops" in values, "no_peak": not peaks and "matmul_flops" not in values}
        _errors.refuse(rules, path=path, device=str(device))
        values["peak_flops"], sources["peak_flops"] = peaks, source or "no peak is published"
    values.setdefault("peak_flops", {})
    if (fraction := values.get("matmul_fraction")) is not None:
        values["matmul_flops"] = {dtype: fraction * peak for dtype, peak in values["peak_flops"].items()}
        sources["matmul_flops"] = f"{fraction:g} of the peak; {sources['matmul_fraction']}"
    _errors.refuse({"fraction": not values["matmul_flops"]}, path=path)
    return Hardware(**values, sources=sources)


def _figure(key: str, value: Any, path: Path) -> Any:
    if key not in _TABLES:
        return _number(key, value, path)
    if not isinstance(value, dict) or not value or not set(value) <= set(DTYPES):
        raise _errors("by_type", path=path, key=key, types=DTYPES)
    return {dtype: _number(f"{key} of {dtype}", flops, path) for dtype, flops in value.items()}


def _number(key: str, value: Any, path: Path) -> float | int:
    """Return the value as a positive number; YAML reads 1e9, which has no point, as a string."""
    try:
        number = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError):
        number = 0.0
    whole = key in ("devices_per_node", "memory_bytes", "host_memory_bytes")
    if not 0 < number < float("inf") or (whole and number != int(number)) or (key.endswith("fraction") and number > 1):
        kind = "a fraction of 1" if key.endswith("fraction") else "a whole number" if whole else "a number"
        raise _errors("number", path=path, key=key, value=value, kind=kind)
    return int(number) if whole else number
