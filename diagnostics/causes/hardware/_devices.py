"""Shared by the causes about devices: the affected devices, and the text if no working device was observed."""

from collections.abc import Callable, Sequence

from diagnostics.analysis.node_health import DeviceHealth, NodeHealth, node_health
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import CERTAIN, CITED, PLAUSIBLE, EvidenceItem, Finding, confirmed
from diagnostics.contract.formatting import Phrase

_SHARED = Texts(__file__)
Words = Callable[[DeviceHealth, Sequence[DeviceHealth]], tuple[Phrase, Phrase | str]]
"""Describes the worst device among all that were checked: a clause, and the measured value."""


def device_cause(
    file: str, is_measured: Callable[[DeviceHealth], bool], severity: Callable[[DeviceHealth], float], words: Words
) -> Cause[tuple[NodeHealth, ...]]:
    """Return a cause that affects single devices.

    `is_measured` says whether a device was checked for this cause while it worked; one of `severity` 0 is not affected.
    Its texts have a row `fix` with the remedy.
    """

    def decide(nodes: tuple[NodeHealth, ...]) -> Finding:
        devices = [device for node in nodes for device in node.devices if is_measured(device)]
        bad = tuple(device for device in devices if severity(device) > 0)
        if not devices:
            return _SHARED.undecided()
        if not bad:
            return _SHARED.ruled_out(count=len(devices))
        worst = max(bad, key=severity)
        clause, measured = words(worst, devices)
        figures = {"name": worst.name, "rank": "" if worst.rank is None else f" (rank {worst.rank})", "clause": clause}
        figures |= {"measured": measured, "more": len(bad) - 1, "fixes": (own.remedy("fix"),)}
        return confirmed(
            facts=_SHARED.facts(("default", "several") if len(bad) > 1 else "default", **figures),
            confidence=PLAUSIBLE if any(device.is_one_look for device in bad) else CERTAIN,
            ranks=tuple(sorted({device.rank for device in bad if device.rank is not None})),
            evidence=tuple(
                EvidenceItem("telemetry", device.file, _SHARED.phrase("seen", name=device.name, measured=measured))
                for device in bad[:CITED]
                for _, measured in [words(device, ())]
            ),
        )

    own = Texts(file)
    return declared(file, node_health, decide)
