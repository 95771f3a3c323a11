"""What the causes about devices share: which devices are concerned, and where nobody looked at one that worked."""

from collections.abc import Callable, Sequence

from diagnostics.analysis.node_health import DeviceHealth, NodeHealth, node_health
from diagnostics.causes.declared import declared
from diagnostics.contract.causes import Cause
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, ruled_out, undecided, worded
from diagnostics.contract.formatting import counted

_LEAVE_OUT = Remedy("environment", "leave the node out (--exclude=NODE) until it is repaired", "the job continues")
Words = Callable[[DeviceHealth, Sequence[DeviceHealth]], tuple[str, str]]
"""Says of the worst device, beside all that were looked at, what it does: a clause, and the measured value."""


def device_cause(
    file: str, known: Callable[[DeviceHealth], bool], badness: Callable[[DeviceHealth], float], words: Words
) -> Cause[tuple[NodeHealth, ...]]:
    """Return a cause that lies in single devices.

    Args:
        file: `__file__` of its module; the table beside it has under `why` the reason of the cause's remedy.
        known: whether a device was looked at for it while it worked.
        badness: 0 = nothing is wrong with it; the larger, the worse.
        words: puts the worst device into words.
    """

    def text(finding: Finding, bad: Sequence[DeviceHealth], devices: Sequence[DeviceHealth]) -> Text:
        worst = max(bad, key=badness)
        clause, measured = words(worst, devices)
        who = f" (rank {worst.rank})" if worst.rank is not None else ""
        more = f" {counted(len(bad) - 1, 'more device')} too." if len(bad) > 1 else ""
        remedy = Remedy("environment", cause.remedy, table_beside(file)["why"])
        return Text(summary=f"{worst.name}{who} {clause}.{more}", measured=measured, remedies=(remedy, _LEAVE_OUT))

    def decide(nodes: tuple[NodeHealth, ...]) -> list[Finding]:
        devices = [device for node in nodes for device in node.devices if known(device)]
        bad = tuple(device for device in devices if badness(device) > 0)
        if not devices:
            missing = "record=light of a dtk run; nvidia-smi -q > FILE while the job runs"
            return [undecided(cause.id, "Nothing of it was recorded of a device that works.", missing)]
        if not bad:
            return [ruled_out(cause.id, "No device shows it.", "{count} devices looked at", count=len(devices))]
        return [
            Finding(
                cause=cause.id,
                status="confirmed",
                facts=worded(text, bad=bad, devices=devices),
                confidence=0.75 if any(device.is_one_look for device in bad) else 0.9,
                ranks=tuple(sorted({device.rank for device in bad if device.rank is not None})),
                evidence=tuple(
                    EvidenceItem("telemetry", one.file, f"{one.name}: {words(one, ())[1]}") for one in bad[:8]
                ),
            )
        ]

    cause = declared(file, node_health, decide)
    return cause
