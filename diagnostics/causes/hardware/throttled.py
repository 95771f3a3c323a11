"""A device lowers its clocks under load because of heat, its power supply or a fault."""

from collections.abc import Sequence
from statistics import median

from diagnostics.analysis.node_health import DeviceHealth
from diagnostics.causes.declared import Texts
from diagnostics.causes.hardware._devices import device_cause
from diagnostics.contract.formatting import Phrase

_TEXTS = Texts(__file__)

_SHARE = 0.2
"""Minimum share of the samples with a working device. Some seconds at the start of a run do not slow a job down."""
_LEAST = 10  # Minimum number of telemetry samples.


def _words(worst: DeviceHealth, devices: Sequence[DeviceHealth]) -> tuple[Phrase, Phrase]:
    reason, share = worst.slowed[0]
    when = _TEXTS.phrase("one_look" if worst.is_one_look else "samples", share=share)
    median_mhz = median([device.clock_mhz for device in devices if device.clock_mhz and not device.slowed] or [0.0])
    clocks = median_mhz and worst.clock_mhz and _TEXTS.phrase("clocks", own=worst.clock_mhz, median=median_mhz)
    clause = _TEXTS.phrase("clause", reason=_TEXTS.phrase(reason), when=when, clocks=clocks or "")
    return clause, _TEXTS.phrase("measured", reason=reason, share=share, samples=max(1, worst.samples))


CAUSE = device_cause(
    __file__,
    lambda device: device.samples >= _LEAST or (device.is_one_look and bool(device.samples or device.slowed)),
    lambda device: share if device.slowed and (share := device.slowed[0][1]) >= _SHARE else 0.0,
    _words,
)
