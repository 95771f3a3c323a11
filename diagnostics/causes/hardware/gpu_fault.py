"""A device failed: its memory, its link, its own processor, or its place on the bus."""

from dataclasses import dataclass

from diagnostics.analysis.gpu_faults import HARMLESS, WORST, After, Event, gpu_faults
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text
from diagnostics.contract.formatting import counted, ranks_spoken, sentence

_SHOWN = 8
"""Lines that a finding cites."""
_CONFIDENCE = 0.93
"""An event of the kernel's log may be older than the job."""
_CHANGES: dict[After, tuple[str, str]] = {
    "restart": ("start the job again from its checkpoint", "only the process was hit; the page was retired"),
    "reset": (
        "drain the node, then nvidia-smi --gpu-reset -i ID (or reboot), and start again from the checkpoint",
        "the error stays until the device is reset; if it returns, dcgmi diag -r 3 and replace the device",
    ),
    "reboot": (
        "drain the node and reboot it, then start again from the checkpoint",
        "a new start on this node fails again; if it returns, check power, PCIe and firmware with the vendor",
    ),
    "replace": (
        "take the node out and have the device replaced (nvidia-bug-report.sh)",
        "neither a restart nor a reset helps",
    ),
    "warning": (
        "reset the device when the node is free (nvidia-smi --gpu-reset -i ID), and watch nvidia-smi -q -d ECC",
        "the job goes on; many of them come before a failure",
    ),
    "program": (
        "CUDA_LAUNCH_BLOCKING=1 COMMAND, or compute-sanitizer: a kernel of the program more often than the device",
        "the same code on another device tells which",
    ),
}


@dataclass(frozen=True, slots=True)
class Faults:
    """Facts: the faults of one job."""

    events: tuple[Event, ...]

    @property
    def after(self) -> After:
        """What the worst of them needs."""
        return min((event.xid.after for event in self.events), key=WORST.index)

    def text(self, finding: Finding) -> Text:
        """Put the finding into words."""
        told = dict.fromkeys(
            f"{event.xid.meaning}{f' (Xid {event.code})' if event.code is not None else ''}"
            f"{f' on {event.device}' if event.device else ''}"
            for event in self.events
        )
        where = f" {sentence(ranks_spoken(finding.ranks))} used it." if finding.ranks else ""
        change, why = _CHANGES[self.after]
        aside = " The job goes on after such an event." if self.after == "warning" else ""
        if self.after == "program":
            aside = " Such an event is mostly a program's fault, not the device's."
        return Text(
            summary=f"A GPU reported {'; '.join(list(told)[:3])}.{where}{aside}",
            measured=counted(len(self.events), "event"),
            missing=change if self.after in HARMLESS else "",
            remedies=(Remedy("environment", change, why),),
        )


@dataclass(frozen=True, slots=True)
class NoFault:
    """Facts: nothing tells of a fault."""

    def text(self, finding: Finding) -> Text:
        """Put the finding into words."""
        return Text(
            summary="No line of the kernel and no CUDA error tells of a fault.",
            missing="dmesg | grep -i xid on each node",
        )


def decide(faults: tuple[Event, ...]) -> list[Finding]:
    """Decide from the driver's Xid lines and from CUDA's errors."""
    failed = tuple(event for event in faults if event.xid.after not in HARMLESS)
    events = failed or faults
    if not events:
        return [Finding(cause="hardware.gpu_fault", status="undecided", facts=NoFault(), confidence=0.0)]
    return [
        Finding(
            cause="hardware.gpu_fault",
            status="confirmed" if failed else "undecided",
            facts=Faults(events),
            confidence=_CONFIDENCE if failed else 0.0,
            ranks=tuple(sorted({event.rank for event in failed if event.rank is not None})),
            evidence=tuple(EvidenceItem("log", event.file, event.text, event.line) for event in events[:_SHOWN]),
        )
    ]


CAUSE = Cause(
    id="hardware.gpu_fault",
    title="a GPU failed",
    outcome="crashed",
    branch="hardware",
    facts=gpu_faults,
    decide=decide,
    decided_from="Xid lines of the kernel's log; CUDA's ECC, NVLink and lost-device errors",
    remedy="by code: start again, reset the device, reboot the node, or replace the device",
    source="NVIDIA's Xid catalogue",
)
