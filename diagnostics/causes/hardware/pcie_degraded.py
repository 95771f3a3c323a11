"""A device's PCIe link has fewer lanes, or an older generation, than the device and its slot allow."""

from collections.abc import Sequence

from diagnostics.analysis.node_health import DeviceHealth
from diagnostics.causes.hardware._devices import device_cause
from diagnostics.contract.causes import Example
from diagnostics.contract.findings import Remedy


def _lost(device: DeviceHealth) -> float:
    """Return the share of its bandwidth that the link has lost; a generation doubles it."""
    (width, widest), (generation, newest) = device.width, device.generation
    return 1.0 - (width / widest if widest else 1.0) * 2.0 ** (generation - newest)


def _words(worst: DeviceHealth, devices: Sequence[DeviceHealth]) -> tuple[str, str]:
    (width, widest), (generation, newest) = worst.width, worst.generation
    link = [f"{width} of {widest} lanes"] if width < widest else []
    link += [f"generation {generation} of {newest}"] if generation < newest else []
    left = f"{1 - _lost(worst):.0%} of its bandwidth for copies to and from the host, and for peers without NVLink"
    return f"has a PCIe link of {' and '.join(link)}: {left}", " and ".join(link)


CAUSE = device_cause(
    id="hardware.pcie_degraded",
    title="a PCIe link is degraded",
    decided_from="telemetry of a dtk run, `nvidia-smi -q`: width and generation of the links of working devices",
    source="nvmlDeviceGetCurrPcieLinkWidth, nvmlDeviceGetMaxPcieLinkWidth (nvml.h: of this device in this system)",
    remedy=Remedy("environment", "reseat the device, its riser or cable; look for AER lines in dmesg", "lanes fail"),
    example=Example("files", ranks=(1,), beside=__file__),
    known=lambda device: device.width[1] > 0,
    badness=_lost,
    words=_words,
)
