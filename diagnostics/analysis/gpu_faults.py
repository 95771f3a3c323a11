"""What the NVIDIA driver's Xid numbers and CUDA's errors say about a device. Holds no cause.
Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), the codes that training meets.
"""

import re
from typing import Literal

from msgspec import Struct

from diagnostics.evidence.model import Evidence

After = Literal["program", "warning", "restart", "reset", "reboot", "replace"]
"""What helps: looking at the program, nothing now (the job goes on), another start of the job, a reset of the device, a
reboot, another device."""
XIDS: dict[int, After] = {
    13: "program", 31: "program", 43: "program", 45: "program", 48: "reset", 61: "reboot", 62: "reboot",
    63: "warning", 64: "replace", 74: "reset", 79: "reboot", 92: "warning", 94: "restart", 95: "reset", 109: "reset",
    119: "reboot", 120: "reboot", 121: "reset", 140: "reset", **dict.fromkeys(range(144, 151), "reset"), 154: "reboot",
    -1: "reboot", -2: "reset",
}  # fmt: skip
"""Xid -> what helps. Those that `program` marks are a faulty program's more often than a device's. Below 0: what other
lines of a driver tell for which there is no Xid."""
_SWITCH = 109  # A context that could not be switched away from: a kernel that crashed or hangs does that as well.
HARMLESS: frozenset[After] = frozenset({"program", "warning"})  # What shows no device that failed.
WORST: tuple[After, ...] = ("replace", "reboot", "reset", "restart", "warning", "program")
_CUDA = (
    (re.compile(r"uncorrectable ECC error"), 48),
    (re.compile(r"(?:uncorrectable )?NVLink error", re.I), 74),
    (re.compile(r"fallen off the bus|GPU is lost", re.I), 79),
    (re.compile(r"RmInitAdapter failed"), -1),
    (re.compile(r"GPU Hang|GPU reset begin"), -2),
)  # CUDA's and NVML's own words for a fault of the device -> the Xid with the same meaning.


class Event(Struct, frozen=True):
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
    events: list[Event] = []
    for fact in evidence.facts:
        if fact.kind == "xid":
            device = str(fact.fields.get("device", "")).removeprefix("PCI:")
            code = fact.fields.get("previous", fact.fields["code"])
            if code == _SWITCH and any(event.device == device and event.after in HARMLESS for event in events):
                continue
            rank = fact.rank if fact.rank is not None else rank_of.get(fact.fields.get("pid", -1))
            events.append(Event(code, True, device, rank, fact.file, fact.line, fact.text))
        elif fact.kind == "gpu_state" and fact.fields["xid"] is not None:  # `nvidia-smi -q`
            code, device = fact.fields["xid"], fact.fields["device"]
            events.append(Event(code, False, device, None, fact.file, fact.line, fact.text))
        elif fact.kind in ("cuda_error", "device_error"):
            device = str(fact.fields.get("device", ""))
            events += _device_errors(str(fact.fields.get("error")), fact.rank, fact.file, fact.line, device)
    for error in evidence.errors:
        events += _device_errors(error.message, error.rank, error.file, error.line)
    return tuple(events)


def _device_errors(text: str, rank: int | None, file: str, line: int, device: str = "") -> list[Event]:
    matches = [(code, match) for regex, code in _CUDA if (match := regex.search(text))]
    return [Event(code, False, device, rank, file, line, match.group()) for code, match in matches]
