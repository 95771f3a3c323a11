"""The disk of the runs folder: free space, write access, duration of a flush. Standard library only."""

import os
import statistics
import tempfile
import time
from pathlib import Path

from diagnostics.contract.formatting import bytes_text as size
from dtk.doctor.limits import trial
from dtk.doctor.model import Result, finding, judged, not_applicable
from dtk.doctor.scope import Scope
from dtk.record.heartbeat import filesystem

FEW_BYTES, SOME_BYTES = 1 << 30, 20 << 30
"""Chosen: free space below which no run fits, and space that a few checkpoints of a large model fill."""
FEW_INODES = 10_000  # Chosen: a run of a thousand ranks writes several files a rank.
BLOCK_BYTES, FLUSHES = 1 << 20, 7  # Chosen: the median of this many flushes ignores a busy moment.
SLOW_FLUSH_S = 0.1  # Chosen: status files are flushed, so above this logging a step may wait for the disk.
LONGEST_S = 10.0  # Chosen: time after which the trial ends with the flushes made so far.


def nearest(folder: Path) -> Path:
    """Return the folder if it exists, or else its nearest parent that does."""
    folder = folder.expanduser().absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def space(scope: Scope) -> Result:
    """Check space and inodes, and write a file."""
    place = nearest(scope.runs_folder)
    if not place.is_dir():
        return judged([finding("runs_folder", text=f"{place} is a file, so there is no place for runs")])
    about = os.statvfs(place)
    whole, free = about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize
    kind = filesystem(place)
    findings = []
    if problem := trial(place, BLOCK_BYTES):
        findings.append(finding("runs_folder", text=f"{place} cannot be written: {problem} ({size(free)} free)"))
    if whole and free < SOME_BYTES:  # The kernel's own file systems have no size.
        findings.append(finding("disk_full", bad=free < FEW_BYTES, free=size(free), whole=size(whole), place=place))
    if about.f_files and about.f_favail < FEW_INODES:
        findings.append(finding("inodes", bad=not about.f_favail, files=about.f_favail, place=place))
    measures = {"folder": str(place), "size_bytes": whole, "free_bytes": free, "filesystem": kind}
    fine = f"{size(free)} free of {size(whole)} at {place} ({kind or 'unknown file system'})"
    return judged(findings, fine, measures=measures)


def fsync(scope: Scope) -> Result:
    """Measure the time until written data is durable."""
    place = nearest(scope.runs_folder)
    times: list[float] = []
    ends_s = time.monotonic() + LONGEST_S
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".dtk-doctor-", buffering=0) as file:
            while len(times) < FLUSHES and time.monotonic() < ends_s:
                file.write(os.urandom(BLOCK_BYTES))
                began = time.perf_counter()
                os.fsync(file.fileno())
                times.append(time.perf_counter() - began)
    except OSError as error:
        return not_applicable(f"{place} cannot be written: {error.strerror or error}")
    middle, longest = statistics.median(times), max(times)
    text = f"fsync of 1 MiB takes {middle * 1e3:.1f} ms (median of {len(times)}, longest {longest * 1e3:.0f} ms)"
    measures = {"median_ms": round(middle * 1e3, 3), "longest_ms": round(longest * 1e3, 3)}
    slow = finding("disk_slow", text=text, disk=filesystem(place) or "this disk")
    return judged([slow] if middle > SLOW_FLUSH_S else [], text, measures=measures)
