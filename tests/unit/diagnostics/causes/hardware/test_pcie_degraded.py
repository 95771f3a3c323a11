"""`hardware.pcie_degraded` from telemetry."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.causes.nodes import decided, telemetry

ID = "hardware.pcie_degraded"
NARROW = {"pcie_width": 4, "pcie_generation": 4}


def test_lanes_and_generation_are_told_with_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "node_00000.jsonl").write_text(telemetry(gpus=[NARROW, {}]))
    finding = decided(tmp_path, ID)
    assert (finding.status, finding.ranks) == ("confirmed", (0,))
    assert "4 of 16 lanes and generation 4 of 5: 12% of the bandwidth" in text_of(finding).summary


@pytest.mark.parametrize(
    ("gpu", "status"),
    [
        ({}, "ruled_out"),
        ({"pcie_generation": 1, "utilization_percent": 0}, "undecided"),  # An idle link saves power.
        ({"pcie_width": None, "pcie_width_max": None, "pcie_generation_max": None}, "undecided"),
    ],
)
def test_other_links_are_not(tmp_path: Path, gpu: dict[str, object], status: str) -> None:
    (tmp_path / "node_00000.jsonl").write_text(telemetry(gpus=[gpu]))
    assert decided(tmp_path, ID).status == status
