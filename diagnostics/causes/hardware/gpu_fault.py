"""A device failed: its memory, its link, its own processor, or its place on the bus."""

from diagnostics.analysis.gpu_faults import HARMLESS, WORST, After, Event, gpu_faults
from diagnostics.causes.declared import declared
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, undecided, worded
from diagnostics.contract.formatting import counted, ranks_spoken, sentence

_SHOWN = 8
"""Lines that a finding cites."""
_CONFIDENCE = 0.93
"""An event of the kernel's log may be older than the job."""
_TABLE = table_beside(__file__)
MEANINGS: dict[int, str] = _TABLE["meanings"]
"""Xid -> what the device reported."""
_AFTER: dict[After, dict[str, str]] = _TABLE["after"]
"""What a fault needs -> what to change, why, and what more to say of it (`aside`)."""


def _words(finding: Finding, events: tuple[Event, ...]) -> Text:
    after = min((event.after for event in events), key=WORST.index)
    faults = dict.fromkeys(
        MEANINGS.get(event.code, "an error that this table does not describe")
        + (f" (Xid {event.code})" if event.by_driver else "")
        + (f" on {event.device}" if event.device else "")
        for event in sorted(events, key=lambda event: not event.by_driver)  # These name the device as well.
        if event.by_driver or not any(other.by_driver and other.code == event.code for other in events)
    )
    used = f" {sentence(ranks_spoken(finding.ranks))} used it." if finding.ranks else ""
    change, aside = _AFTER[after]["change"], _AFTER[after].get("aside", "")
    return Text(
        summary=f"GPU fault: {'; '.join(list(faults)[:3])}.{used}{f' {aside}' if aside else ''}",
        measured=counted(len(events), "event"),
        missing=change if after in HARMLESS else "",
        remedies=(Remedy("environment", change, _AFTER[after]["why"]),),
    )


def decide(faults: tuple[Event, ...]) -> list[Finding]:
    """Decide from the driver's Xid lines and from CUDA's errors."""
    failed = tuple(event for event in faults if event.after not in HARMLESS)
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


CAUSE = declared(__file__, gpu_faults, decide)
