"""What the NVIDIA driver's Xid numbers and CUDA's errors say about a device. Holds no cause.

Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), the codes that training meets.
"""

import re
from dataclasses import dataclass
from typing import Literal

from diagnostics.evidence.model import Evidence

After = Literal["program", "warning", "restart", "reset", "reboot", "replace"]
"""What helps: looking at the program, nothing now (the job goes on), another start of the job, a reset of the device, a
reboot, another device."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One code."""

    meaning: str
    after: After


XIDS = {
    13: Xid("an illegal access in a kernel", "program"),
    31: Xid("a page fault of a kernel", "program"),
    43: Xid("a kernel was stopped", "program"),
    45: Xid("work was thrown away after an earlier error", "program"),
    48: Xid("an uncorrected memory error", "reset"),
    61: Xid("a breakpoint of the GPU's own processor", "reboot"),
    62: Xid("a halt of the GPU's own processor", "reboot"),
    63: Xid("a row was remapped", "warning"),
    64: Xid("a row could not be remapped", "replace"),
    74: Xid("an NVLink error", "reset"),
    79: Xid("that it fell off the bus", "reboot"),
    92: Xid("many corrected memory errors", "warning"),
    94: Xid("a contained memory error", "restart"),
    95: Xid("an uncontained memory error", "reset"),
    109: Xid("a context switch timed out", "reset"),
    119: Xid("the GPU's own processor does not answer", "reboot"),
    120: Xid("an error of the GPU's own processor", "reboot"),
    121: Xid("a C2C link error", "reset"),
    140: Xid("an uncorrected memory error", "reset"),
    149: Xid("an NVLink error", "reset"),
    154: Xid("the driver asks for a recovery", "reboot"),
}
"""Those that `program` marks are a faulty program's more often than a device's."""
UNKNOWN = Xid("an error that this table does not hold", "reset")
HARMLESS: frozenset[After] = frozenset({"program", "warning"})
"""What shows no device that failed."""
WORST: tuple[After, ...] = ("replace", "reboot", "reset", "restart", "warning", "program")
_CUDA = (
    (re.compile(r"uncorrectable ECC error"), Xid("an uncorrected memory error", "reset")),
    (re.compile(r"(?:uncorrectable )?NVLink error", re.I), Xid("an NVLink error", "reset")),
    (re.compile(r"fallen off the bus|GPU is lost", re.I), XIDS[79]),
)
"""CUDA's and NVML's own words for a fault of the device."""


@dataclass(frozen=True, slots=True)
class Event:
    """One fault, as a log tells of it."""

    xid: Xid
    code: int | None
    """None where CUDA tells of it, not the driver."""
    device: str
    rank: int | None
    file: str
    line: int
    text: str


def gpu_faults(evidence: Evidence) -> tuple[Event, ...]:
    """Return what the kernel's log and the ranks say about their devices."""
    rank_of: dict[int, int] = {}
    for fact in evidence.facts:
        rank_of |= fact.fields.get("rank_of", {}) if fact.kind == "torchrun_list" else {}
    events = []
    for fact in evidence.facts:
        if fact.kind == "xid":
            code, device = fact.fields["code"], str(fact.fields.get("device", "")).removeprefix("PCI:")
            rank = fact.rank if fact.rank is not None else rank_of.get(fact.fields.get("pid", -1))
            events.append(Event(XIDS.get(code, UNKNOWN), code, device, rank, fact.file, fact.line, fact.text))
        elif fact.kind == "cuda_error":
            events += _device_errors(str(fact.fields.get("error")), fact.rank, fact.file, fact.line)
    for error in evidence.errors:
        events += _device_errors(error.message, error.rank, error.file, error.line)
    return tuple(events)


def _device_errors(text: str, rank: int | None, file: str, line: int) -> list[Event]:
    return [
        Event(xid, None, "", rank, file, line, found.group()) for regex, xid in _CUDA if (found := regex.search(text))
    ]
