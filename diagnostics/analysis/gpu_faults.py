"""The meaning of the NVIDIA driver's Xid numbers and CUDA's errors for a device. Holds no cause. Source: NVIDIA's Xid
catalogue (docs.nvidia.com/deploy/xid-errors), the codes that training meets.
"""

import re
from typing import Literal

from msgspec import Struct

from diagnostics.contract.files import table_beside
from diagnostics.evidence.model import Evidence

After = Literal["program", "warning", "restart", "reset", "reboot", "replace"]
"""What helps: a look at the program, nothing now (the job continues), a restart of the job, a reset of the device, a
reboot, another device."""
_TABLE = table_beside(__file__)
XIDS: dict[int, After] = _TABLE["xids"]
_CUDA = [(re.compile(text), code) for text, code in _TABLE["texts"]]
_SWITCH = 109  # A context that could not be switched away from: a kernel that crashed or hangs does that as well.
HARMLESS: frozenset[After] = frozenset({"program", "warning"})  # What shows no device that failed.
WORST: tuple[After, ...] = ("replace", "reboot", "reset", "restart", "warning", "program")


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
