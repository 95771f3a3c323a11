"""`hardware.throttled` from telemetry and from `nvidia-smi -q`."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.causes.nodes import decided, telemetry

ID = "hardware.throttled"
HOT = {"throttle_reasons": ["software_power_cap", "hardware_thermal"], "sm_clock_mhz": 900}


def test_the_hot_device_is_named_with_its_rank_and_its_clock(tmp_path: Path) -> None:
    (tmp_path / "node_00000.jsonl").write_text(telemetry(gpus=[{}, HOT]))
    finding = decided(tmp_path, ID)
    assert (finding.status, finding.ranks, finding.confidence) == ("confirmed", (1,), 0.9)
    assert (
        "GPU 1 (rank 1) lowered its clocks" in text_of(finding).summary
        and "at 900 MHz instead of 1,755 MHz" in text_of(finding).summary
    )


@pytest.mark.parametrize(
    ("gpu", "status"),
    [
        ({}, "ruled_out"),  # At its power limit, as under any full load.
        ({**HOT, "utilization_percent": 3}, "undecided"),  # It does not work.
        ({"throttle_reasons": None}, "ruled_out"),
    ],
)
def test_other_devices_are_not(tmp_path: Path, gpu: dict[str, object], status: str) -> None:
    (tmp_path / "node_00000.jsonl").write_text(telemetry(gpus=[gpu]))
    assert decided(tmp_path, ID).status == status


def test_some_hot_seconds_are_none(tmp_path: Path) -> None:
    hot, cool = (telemetry(gpus=[gpu], count=n).splitlines(keepends=True) for gpu, n in ((HOT, 9), ({}, 91)))
    (tmp_path / "node_00000.jsonl").write_text("".join([*hot, *cool[1:]]))
    assert decided(tmp_path, ID).status == "ruled_out"
