"""A device's PCIe link has fewer lanes or an older generation than the device and its slot support."""

from collections.abc import Sequence

from diagnostics.analysis.node_health import DeviceHealth
from diagnostics.causes.declared import Texts
from diagnostics.causes.hardware._devices import device_cause
from diagnostics.contract.formatting import Phrase

_TEXTS = Texts(__file__)


def _lost(device: DeviceHealth) -> float:
    """Return the share of bandwidth that the link has lost; each generation doubles the bandwidth."""
    (width, widest), (generation, newest) = device.width, device.generation
    return 1.0 - (width / widest if widest else 1.0) * 2.0 ** (generation - newest)


def _words(worst: DeviceHealth, devices: Sequence[DeviceHealth]) -> tuple[Phrase, Phrase]:
    (width, widest), (generation, newest) = worst.width, worst.generation
    link = [_TEXTS.phrase("lanes", width=width, widest=widest)] if width < widest else []
    link += [_TEXTS.phrase("generation", generation=generation, newest=newest)] if generation < newest else []
    return _TEXTS.phrase("clause", link=link, remaining=1 - _lost(worst)), _TEXTS.phrase("link", link=link)


CAUSE = device_cause(__file__, lambda device: device.width[1] > 0, _lost, _words)
