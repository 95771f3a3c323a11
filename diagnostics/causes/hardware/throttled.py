"""A device lowers its clocks because of heat, its power supply or a fault, while it works."""

from collections.abc import Sequence
from statistics import median

from diagnostics.analysis.node_health import DeviceHealth
from diagnostics.causes.hardware._devices import device_cause
from diagnostics.contract.formatting import counted

_SHARE = 0.2
"""Of the samples in which a device worked. Some seconds of it at the start of a run slow no job down."""
_LEAST = 10
"""Samples of telemetry."""
_WHY = {
    "software_thermal": "its temperature limit",
    "hardware_thermal": "heat that its hardware reports",
    "hardware_power_brake": "a power brake signal of the server",
    "hardware_slowdown": "heat or a power brake that its hardware reports",
}


def _words(worst: DeviceHealth, devices: Sequence[DeviceHealth]) -> tuple[str, str]:
    reason, share = worst.slowed[0]
    when = "when it was looked at" if worst.is_one_look else f"in {share:.0%} of the samples in which it worked"
    median_mhz = median([device.clock_mhz for device in devices if device.clock_mhz and not device.slowed] or [0.0])
    clocks = (
        f", at {worst.clock_mhz:,.0f} MHz instead of {median_mhz:,.0f} MHz" if median_mhz and worst.clock_mhz else ""
    )
    measured = f"{reason} in {share:.0%} of {counted(max(1, worst.samples), 'sample')}"
    return f"lowered its clocks because of {_WHY[reason]} {when}{clocks}", measured


def _known(device: DeviceHealth) -> bool:
    return device.samples >= _LEAST or (device.is_one_look and bool(device.samples or device.slowed))


def _badness(device: DeviceHealth) -> float:
    return share if device.slowed and (share := device.slowed[0][1]) >= _SHARE else 0.0


CAUSE = device_cause(__file__, _known, _badness, _words)
