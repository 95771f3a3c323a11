"""A device's PCIe link has fewer lanes, or an older generation, than the device and its slot allow."""

from collections.abc import Sequence

from diagnostics.analysis.node_health import DeviceHealth
from diagnostics.causes.hardware._devices import device_cause


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


CAUSE = device_cause(__file__, lambda device: device.width[1] > 0, _lost, _words)
