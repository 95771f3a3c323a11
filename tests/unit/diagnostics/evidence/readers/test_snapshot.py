"""Snapshots of the CUDA allocator: read in both forms, fragmentation found, nothing executed, damage told."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from diagnostics.evidence.limits import Limits, head
from diagnostics.evidence.memory.levels import total
from diagnostics.evidence.readers.snapshot import SnapshotFile, recognise
from tests.unit.diagnostics.causes.memory.jobs import confirmed, findings

MIB = 1 << 20
USER = [
    {"name": "empty", "filename": "/usr/lib/python3/site-packages/torch/functional.py", "line": 7},
    {"name": "forward", "filename": "/home/me/train.py", "line": 31},
]


def block(size: int, state: str, address: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": USER}


def snapshot(used_of_ten: int, request: int = 300 * MIB) -> dict[str, Any]:
    """100 segments of 20 MiB, each with `used_of_ten` tenths in use; then a request that fails."""
    segments = []
    for number in range(100):
        start = number << 32
        used = used_of_ten * 2 * MIB
        blocks = [block(used, "active_allocated", start), block(20 * MIB - used, "inactive", start + used)]
        segments.append(
            {"device": 0, "address": start, "total_size": 20 * MIB, "allocated_size": used, "active_size": used,
             "stream": 0, "segment_type": "large", "blocks": [item for item in blocks if item["size"]]}
        )  # fmt: skip
    trace = [
        {"action": "alloc", "addr": 1, "size": 4 * MIB, "stream": 0, "time_us": 10, "frames": USER},
        {"action": "alloc", "addr": 2, "size": 90 * MIB, "stream": 0, "time_us": 20, "frames": USER},
        {"action": "free_requested", "addr": 2, "size": 90 * MIB, "stream": 0, "time_us": 30, "frames": []},
        {"action": "free_completed", "addr": 2, "size": 90 * MIB, "stream": 0, "time_us": 40, "frames": []},
        {
            "action": "oom",
            "addr": 0,
            "size": request,
            "stream": 0,
            "time_us": 50,
            "frames": USER,
            "device_free": 5 * MIB,
        },
    ]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {"expandable_segments": False}}


def write(folder: Path, value: dict[str, Any], form: str) -> Path:
    path = folder / f"snapshot_rank2.{form}"
    path.write_bytes(pickle.dumps(value) if form == "pickle" else json.dumps(value).encode())
    return path


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_both_forms_are_read(tmp_path, form):
    path = write(tmp_path, snapshot(used_of_ten=5), form)
    assert recognise(head(path))
    loaded = SnapshotFile(path, path.name, 2, Limits()).load()
    device = loaded.devices[0]
    assert (device.reserved_bytes, device.allocated_bytes, device.unused_bytes) == (2000 * MIB, 1000 * MIB, 1000 * MIB)
    assert (device.largest_free_bytes, device.free_blocks, device.segments) == (10 * MIB, 100, 100)
    assert device.peak_bytes == 1090 * MIB
    assert device.peak_site is not None
    assert device.peak_site.line == 31
    assert max(map(total, device.history.rows)) == 1090 * MIB
    assert loaded.out_of_memory[0].requested_bytes == 300 * MIB


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_request_that_fits_only_the_sum_of_free_pieces_is_fragmentation(tmp_path, form):
    write(tmp_path, snapshot(used_of_ten=5), form)
    result = findings(tmp_path)
    assert confirmed(result) == ["fragmentation"]
    finding = result["fragmentation"]
    assert finding.ranks == (2,)
    assert finding.cost is not None
    assert finding.cost.value == 1000 * MIB
    assert (finding.where[0].file, finding.where[0].line) == ("/home/me/train.py", 31)


def test_a_full_allocator_is_not_fragmented(tmp_path):
    write(tmp_path, snapshot(used_of_ten=9), "pickle")
    assert findings(tmp_path)["fragmentation"].status == "ruled_out"


def test_a_request_larger_than_all_free_pieces_is_not_fragmentation(tmp_path):
    write(tmp_path, snapshot(used_of_ten=5, request=1500 * MIB), "pickle")
    assert findings(tmp_path)["fragmentation"].status == "ruled_out"


@pytest.mark.parametrize(
    "value", [{"segments": 5}, {"segments": [{"blocks": [None, {"size": "x"}]}], "device_traces": 3}]
)
def test_nonsense_is_a_value_error_or_nothing(tmp_path, value):
    path = write(tmp_path, value, "pickle")
    try:
        loaded = SnapshotFile(path, path.name, 0, Limits()).load()
    except ValueError:
        return
    assert sum(device.allocated_bytes for device in loaded.devices.values()) == 0


def test_code_in_a_snapshot_is_refused(tmp_path):
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    path = tmp_path / "snapshot_rank0.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [], "x": Evil()}))
    with pytest.raises(ValueError, match="refused"):
        SnapshotFile(path, path.name, 0, Limits()).load()
    assert not (tmp_path / "ran").exists()


def test_every_cut_is_damage_not_a_traceback(tmp_path):
    data = pickle.dumps(snapshot(used_of_ten=5))
    path = tmp_path / "cut_rank0.pickle"
    for end in range(0, len(data) - 1, max(1, len(data) // 60)):
        path.write_bytes(data[:end])
        with pytest.raises(ValueError, match=r"damaged|empty|refused|not an allocator snapshot"):
            SnapshotFile(path, path.name, 0, Limits()).load()


HONEST = pickle.dumps(snapshot(5), protocol=4)
DAMAGED = HONEST[: len(HONEST) // 2]
