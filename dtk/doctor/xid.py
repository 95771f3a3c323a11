"""Xid events that the NVIDIA driver wrote to the kernel log. Reads the log only; needs neither NVML nor a GPU."""

import errno
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from diagnostics.analysis.gpu_faults import MEANINGS, XIDS
from diagnostics.contract.formatting import age
from dtk.doctor.gpus import nvidia_devices
from dtk.doctor.model import Finding, Remedy, Result, Scope, finding, judged, not_applicable

KERNEL_LOG = Path("/dev/kmsg")
RECORD_BYTES, LOG_BYTES = 8192, 64 << 20  # CONSOLE_EXT_LOG_MAX; chosen: above the log of any kernel.
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, ?(.{0,160}))?")
SHOWN = 8  # Chosen: the last events fit on a screen; the summary counts all.
RECENT_S = 24 * 3600.0  # Chosen: an older hardware error is a warning, as it may have been fixed since.


@dataclass(frozen=True, slots=True)
class Event:
    """One Xid in the log."""

    bus: str
    code: int
    text: str
    age_s: float | None


def xid(scope: Scope, log: Path = KERNEL_LOG) -> Result:
    """Judge the Xid events since boot in a log with the format of /dev/kmsg."""
    driver_here = nvidia_devices()
    try:
        events = [event for line in read_log(log).splitlines() if (event := parse(line)) is not None]
    except OSError as error:
        if not driver_here:
            return not_applicable("no NVIDIA driver is loaded")
        fix = Remedy("check the log as root", "sudo dmesg | grep -i xid")
        return not_applicable(f"{log} cannot be read: {error.strerror or error}", remedies=(fix,))
    if not events and not driver_here:
        return not_applicable("no NVIDIA driver is loaded, and the kernel log has no Xid")
    findings = [_finding(bus, code, events) for bus, code in sorted({(event.bus, event.code) for event in events})]
    details = [f"{event.bus}  Xid {event.code}  {event.text}" for event in events[-SHOWN:]]
    measures = {"xid": [{"pci": event.bus, "code": event.code, "age_s": event.age_s} for event in events]}
    return judged(findings, "no Xid since the machine started", details=details, measures=measures)


def read_log(path: Path) -> str:
    """Return the contents of a kernel log without waiting for more; OSError if it is absent or may not be read."""
    parts, size = [], 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while size < LOG_BYTES:
            try:
                part = os.read(descriptor, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # A record was overwritten during reading; the next one is available.
                    continue
                raise
            if not part:
                break
            parts.append(part)
            size += len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace")


def parse(line: str) -> Event | None:
    """Parse a line of /dev/kmsg (`6,1234,5678901,-;text`, time in us since boot); return None if it is not an Xid."""
    if (match := XID.search(line)) is None:
        return None
    head = line.split(";", 1)[0].split(",")
    age_s = None
    if len(head) >= 3 and head[2].isdecimal():
        age_s = max(0.0, time.clock_gettime(time.CLOCK_MONOTONIC) - int(head[2]) / 1e6)
    return Event(match[1].rpartition(".")[0] or match[1], int(match[2]), (match[3] or "").strip(), age_s)


def _finding(bus: str, code: int, events: list[Event]) -> Finding:
    own = [event for event in events if (event.bus, event.code) == (bus, code)]
    last = own[-1].age_s
    when = "" if last is None else f", the last {age(last)} ago"
    text = f"{bus}: Xid {code} ({MEANINGS.get(code, 'see the Xid catalogue of NVIDIA')}) {len(own)} x{when}"
    if XIDS.get(code) == "program":
        return finding("xid_program", text=text)
    return finding("xid_hardware", bad=last is None or last < RECENT_S, text=text)
