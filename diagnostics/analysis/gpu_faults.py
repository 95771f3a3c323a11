"""The meaning of the NVIDIA driver's Xid codes and of CUDA errors for a device. Names no cause. Source: NVIDIA's Xid
catalogue (docs.nvidia.com/deploy/xid-errors), limited to the codes that occur in training.
"""

import re
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.endings import of_error
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers import log, watch

After = Literal["program", "warning", "restart", "reset", "reboot", "replace"]
"""The remedy: debug the program, nothing (the job continues), restart the job, reset or replace the device, reboot."""
_TABLE = table_beside(__file__)
XIDS: dict[int, After] = _TABLE["xids"]
MEANINGS: dict[int, str] = _TABLE["meanings"]  # 0 is the entry for all other Xids.
_ACTIONS: dict[str, After] = _TABLE["actions"]
_OF_PROGRAM = frozenset(_TABLE["of_program"])
_CUDA = [(re.compile(text), code) for text, code in _TABLE["texts"]]
_SWITCH = 109  # The driver could not switch away from a context: a kernel that crashed or hangs causes this as well.
HARMLESS: frozenset[After] = frozenset({"program", "warning"})  # Codes that do not indicate a failed device.
WORST: tuple[After, ...] = ("replace", "reboot", "reset", "restart", "warning", "program")


class Event(Struct, frozen=True):
    """One fault, as reported in a log."""

    code: int
    """The Xid code; for a CUDA error, the Xid code with the same meaning."""
    by_driver: bool
    """Whether the driver itself reported it."""
    device: str
    rank: int | None
    file: str
    line: int
    text: str
    action: str = ""
    """The recovery that the driver asks for (Xid 154)."""
    survived: bool = False
    """Whether the job ended in order, so that this did not end it."""
    aside: bool = False
    """Whether the kernel ties it to no rank, and all ranks that failed by themselves raised what no device causes."""

    @property
    def after(self) -> After:
        """The remedy; `reset` if the table does not contain the code."""
        return _ACTIONS.get(self.action, XIDS.get(self.code, "reset"))


def gpu_faults(evidence: Evidence) -> tuple[Event, ...]:
    """Return the device faults reported by the kernel log and by the ranks."""
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
            action = str(fact.fields.get("action", ""))
            events.append(Event(code, True, device, rank, fact.file, fact.line, fact.text, action))
        elif fact.kind == "gpu_state" and fact.fields["xid"] is not None:  # `nvidia-smi -q`
            code, device = fact.fields["xid"], fact.fields["device"]
            events.append(Event(code, False, device, None, fact.file, fact.line, fact.text))
        elif fact.kind in ("cuda_error", "device_error"):
            device = str(fact.fields.get("device", ""))
            events += _device_errors(str(fact.fields.get("error")), fact.rank, fact.file, fact.line, device)
    for error in evidence.errors:
        events += _device_errors(error.message, error.rank, error.file, error.line)
    own = [error.type for error in evidence.errors if error.type and of_error(error, UNNAMED).by_itself]
    by_program = bool(own) and _OF_PROGRAM.issuperset(own) and not any(f.kind == "cuda_error" for f in evidence.facts)
    survived = log.training_ended(evidence) or watch.finished(evidence)
    return tuple(replace(event, survived=survived, aside=by_program and event.rank is None) for event in events)


def _device_errors(text: str, rank: int | None, file: str, line: int, device: str = "") -> list[Event]:
    matches = [(code, match) for regex, code in _CUDA if (match := regex.search(text))]
    return [Event(code, False, device, rank, file, line, match.group()) for code, match in matches]
