"""`nvidia-smi -q` as drivers 535 and 550 print it, and the causes that are decided from it."""

from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from tests.unit.diagnostics.causes.nodes import decided

DEVICE = """GPU {address}
    Product Name                          : NVIDIA A100-SXM4-80GB
    GPU Reset Status
        Reset Required                    : No
        Drain and Reset Recommended       : No
    PCI
        Bus                               : 0x07
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : {generation}
                Device Current            : {generation}
                Host Max                  : 4
            Link Width
                Max                       : 16x
                Current                   : {width}x
    Performance State                     : P0
    Clocks {event} Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : {hot}
            HW Thermal Slowdown           : {hot}
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    Utilization
        Gpu                               : {busy} %
        Memory                            : 12 %
    ECC Errors
        Volatile
            SRAM Correctable              : 3
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {ecc}
        Aggregate
            SRAM Correctable              : 3
            DRAM Uncorrectable            : 7
    Remapped Rows
        Correctable Error                 : 0
        Pending                           : No
        Remapping Failure Occurred        : {remap}
    Clocks
        Graphics                          : 1155 MHz
        SM                                : 1155 MHz
    Max Clocks
        Graphics                          : 1410 MHz
        SM                                : 1410 MHz
"""
HEAD = """
==============NVSMI LOG==============

Timestamp                                 : Mon Nov 23 06:40:00 2026
Driver Version                            : 535.129.03
CUDA Version                              : 12.2

Attached GPUs                             : 2
"""
FINE = {"address": "00000000:07:00.0", "generation": 4, "width": 16, "event": "Event", "hot": "Not Active", "busy": 99,
        "ecc": 0, "remap": "No"}  # fmt: skip


def text(**other: object) -> str:
    """Two devices, of which the second differs."""
    return HEAD + DEVICE.format(**FINE) + DEVICE.format(**(FINE | {"address": "00000000:0F:00.0"} | other))


def test_each_device_with_its_own_values(tmp_path: Path) -> None:
    (tmp_path / "smi.txt").write_text(text(width=8, hot="Active", event="Throttle"))
    facts = [fact.fields for fact in gather(tmp_path, Limits()).facts if fact.kind == "gpu_state"]
    assert [fields["device"] for fields in facts] == ["00000000:07:00.0", "00000000:0F:00.0"]
    sample = facts[1]["sample"]
    assert (sample.pcie_width, sample.pcie_width_max, sample.pcie_generation) == (8, 16, 4)
    assert (sample.utilization_percent, sample.sm_clock_mhz) == (99, 1155)
    assert sample.throttle_reasons == ["software_power_cap", "hardware_slowdown", "hardware_thermal"]
    assert [fields["xid"] for fields in facts] == [None, None]


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        ({"hot": "Active"}, "hardware.throttled"),
        ({"width": 8}, "hardware.pcie_degraded"),
        ({"ecc": 2}, "hardware.gpu_fault"),
        ({"remap": "Yes"}, "hardware.gpu_fault"),
    ],
)
def test_the_causes_of_devices_are_decided_from_it(tmp_path: Path, other: dict[str, object], cause: str) -> None:
    (tmp_path / "smi.txt").write_text(text(**other))
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == cause and "0F:00.0" in str(root.facts)


@pytest.mark.parametrize("other", [{}, {"generation": 1, "busy": 0}, {"hot": "Active", "busy": 0}])
def test_healthy_and_idle_devices_are_none(tmp_path: Path, other: dict[str, object]) -> None:
    (tmp_path / "smi.txt").write_text(text(**other))
    assert {decided(tmp_path, f"hardware.{name}").status for name in ("throttled", "pcie_degraded", "gpu_fault")} <= {
        "ruled_out",
        "undecided",
    }


HONEST = text().encode()
DAMAGED = HEAD.encode()
