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
XIDS: dict[int, After] = {
    13: "program", 31: "program", 43: "program", 45: "program", 48: "reset", 61: "reboot", 62: "reboot",
    63: "warning", 64: "replace", 74: "reset", 79: "reboot", 92: "warning", 94: "restart", 95: "reset", 109: "reset",
    119: "reboot", 120: "reboot", 121: "reset", 140: "reset", 149: "reset", 154: "reboot",
}  # fmt: skip
"""Xid -> what helps. Those that `program` marks are a faulty program's more often than a device's."""
HARMLESS: frozenset[After] = frozenset({"program", "warning"})  # What shows no device that failed.
WORST: tuple[After, ...] = ("replace", "reboot", "reset", "restart", "warning", "program")
_CUDA = (
    (re.compile(r"uncorrectable ECC error"), 48),
    (re.compile(r"(?:uncorrectable )?NVLink error", re.I), 74),
    (re.compile(r"fallen off the bus|GPU is lost", re.I), 79),
)  # CUDA's and NVML's own words for a fault of the device -> the Xid with the same meaning.


@dataclass(frozen=True, slots=True)
class Event:
    """One fault, as a log tells of it."""

    code: int
    """The Xid; where CUDA tells of it the one with the same meaning."""
    by_driver: bool
    """Whether the driver itself tells of it."""
    device: str
    rank: int | None
    file: str
    line: int
    text: str

    @property
    def after(self) -> After:
        """What helps; a reset where the table does not hold the code."""
        return XIDS.get(self.code, "reset")


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
            events.append(Event(code, True, device, rank, fact.file, fact.line, fact.text))
        elif fact.kind == "gpu_state" and fact.fields["xid"] is not None:  # `nvidia-smi -q`
            code, device = fact.fields["xid"], fact.fields["device"]
            events.append(Event(code, False, device, None, fact.file, fact.line, fact.text))
        elif fact.kind == "cuda_error":
            events += _device_errors(str(fact.fields.get("error")), fact.rank, fact.file, fact.line)
    for error in evidence.errors:
        events += _device_errors(error.message, error.rank, error.file, error.line)
    return tuple(events)


def _device_errors(text: str, rank: int | None, file: str, line: int) -> list[Event]:
    matches = [(code, match) for regex, code in _CUDA if (match := regex.search(text))]
    return [Event(code, False, "", rank, file, line, match.group()) for code, match in matches]
