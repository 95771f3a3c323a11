"""A device failed: its memory, its link, its own processor, or its place on the bus."""

from diagnostics.analysis.gpu_faults import HARMLESS, WORST, After, Event, gpu_faults
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, undecided, worded
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
_ASIDES: dict[After, str] = {
    "warning": " The job goes on after such an event.",
    "program": " Such an event is mostly a program's fault, not the device's.",
}


def _words(finding: Finding, events: tuple[Event, ...]) -> Text:
    after = min((event.xid.after for event in events), key=WORST.index)
    faults = dict.fromkeys(
        event.xid.meaning
        + (f" (Xid {event.code})" if event.code is not None else "")
        + (f" on {event.device}" if event.device else "")
        for event in events
    )
    used = f" {sentence(ranks_spoken(finding.ranks))} used it." if finding.ranks else ""
    change, why = _CHANGES[after]
    return Text(
        summary=f"A GPU reported {'; '.join(list(faults)[:3])}.{used}{_ASIDES.get(after, '')}",
        measured=counted(len(events), "event"),
        missing=change if after in HARMLESS else "",
        remedies=(Remedy("environment", change, why),),
    )


def decide(faults: tuple[Event, ...]) -> list[Finding]:
    """Decide from the driver's Xid lines and from CUDA's errors."""
    failed = tuple(event for event in faults if event.xid.after not in HARMLESS)
    events = failed or faults
    if not events:
        summary = "No line of the kernel and no CUDA error reports a fault."
        return [undecided("hardware.gpu_fault", summary, "dmesg | grep -i xid on each node")]
    return [
        Finding(
            cause="hardware.gpu_fault",
            status="confirmed" if failed else "undecided",
            facts=worded(_words, events=events),
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
