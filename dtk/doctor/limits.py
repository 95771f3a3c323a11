"""What the system grants: shared memory, locked memory, files, processes, the runs folder's disk. No torch."""

import os
import resource
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from diagnostics.contract.files import kernel_entries
from diagnostics.contract.formatting import bytes_text as size, first_of
from dtk.config.placement import host_memory
from dtk.doctor.model import Result, Scope, finding, judged, not_applicable
from dtk.record.heartbeat import filesystem

SHM = Path("/dev/shm")
RDMA = Path("/sys/class/infiniband")
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
PIDS_MAX = CGROUP / "pids.max"
SEGMENT_BYTES = 32 << 20
"""Chosen: bytes allocated for the trial, three of NCCL's 9.6 MB segments, or one batch of a data loader."""
SHM_BYTES = 1 << 30  # Chosen: several ranks with data loader workers need more; Docker's default is 64 MiB.
FILES, FEW_FILES, WANTED_FILES = 4096, 512, 65536
"""Chosen: file descriptors of a rank: sockets to all peers, shared tensors of data loader workers, data files."""
PROCESSES = 4096  # Chosen: threads count as processes, those of OpenMP, NCCL and the data loader, of all ranks.
RANKS_MEMLOCK_BYTES = 1 << 30  # Chosen: RDMA buffers of a rank take some hundred MiB; clusters set it to unlimited.

LITTLE_SHARE = 0.1  # Chosen: of the host memory; below it, starting ranks may invoke the kernel's OOM killer.
FEW_BYTES, SOME_BYTES = 1 << 30, 20 << 30
"""Chosen: free space below which no run fits, and space that a few checkpoints of a large model fill."""
FEW_INODES = 10_000  # Chosen: a run of a thousand ranks writes several files a rank.
BLOCK_BYTES, FLUSHES = 1 << 20, 7  # Chosen: the median of this many flushes ignores a busy moment.
SLOW_FLUSH_S = 0.1  # Chosen: status files are flushed, so above this logging a step may wait for the disk.
LONGEST_S = 10.0  # Chosen: time after which the trial ends with the flushes made so far.


def shm(scope: Scope, folder: Path = SHM) -> Result:
    """Check size and free space of a folder for shared memory, and create a segment in it."""
    if not folder.is_dir():
        return judged([finding("shm_absent", folder=folder)])
    about = os.statvfs(folder)
    whole, free = about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize
    findings = []
    if problem := trial(folder, SEGMENT_BYTES):
        text = f"{folder}: {size(SEGMENT_BYTES)} cannot be taken: {problem} ({size(free)} of {size(whole)} free)"
        findings.append(finding("shm_used" if whole >= SHM_BYTES else "shm_little", bad=True, text=text, folder=folder))
    elif whole < SHM_BYTES:
        text = f"{folder} has {size(whole)} in total, which is little for several ranks with data loader workers"
        findings.append(finding("shm_little", text=text, folder=folder))
    elif free < SHM_BYTES:
        findings.append(finding("shm_used", text=f"{folder} has {size(free)} free of {size(whole)}", folder=folder))
    return judged(findings, f"{size(free)} free of {size(whole)}", measures={"size_bytes": whole, "free_bytes": free})


def trial(folder: Path, size_bytes: int) -> str:
    """Allocate `size_bytes` in a folder and free them; return why it failed, or an empty string."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".dtk-doctor-") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def memlock(scope: Scope, rdma: Path = RDMA) -> Result:
    """Judge this process's limit on locked memory by the needs of the devices in `rdma`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else size(soft)
    devices = [path.name for path in kernel_entries(rdma)]
    if not devices:
        return judged([], f"{limit}; enough, as there is no RDMA device", common={"memlock": limit})
    findings = []
    if soft != resource.RLIM_INFINITY:
        text = f"{limit} of locked memory: RDMA ({first_of(devices)}) registers buffers of all ranks"
        key = "limit_for_all" if soft >= hard != resource.RLIM_INFINITY else "limit_own"
        fix = {"letter": "l", "wanted": "unlimited", "limit": "memlock", "docker": "-1"}
        findings.append(finding(key, bad=soft < RANKS_MEMLOCK_BYTES, text=text, **fix))
    return judged(findings, f"{limit}, RDMA devices: {', '.join(devices)}", common={"memlock": limit})


def files(scope: Scope) -> Result:
    """Check the number of file descriptors that a process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    findings = []
    if soft < FILES:
        text = f"{soft:,} open files per process: peers' sockets and data loader workers use them up"
        key = "limit_for_all" if hard < FILES else "limit_own"
        target = WANTED_FILES if hard == resource.RLIM_INFINITY or hard < FILES else min(WANTED_FILES, hard)
        fix = {"letter": "n", "wanted": target, "limit": "nofile", "docker": str(WANTED_FILES)}
        findings.append(finding(key, bad=soft < FEW_FILES, text=text, **fix))
    measures = {"soft": soft, "hard": hard}
    return judged(
        findings, f"{soft:,} open files per process (ulimit -n)", measures=measures, common={"open files": str(soft)}
    )


def processes(scope: Scope, pids_max: Path = PIDS_MAX) -> Result:
    """Judge the smaller of the user's limit and the container's."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = {} if soft == resource.RLIM_INFINITY else {"ulimit -u": soft}
    with suppress(OSError, ValueError):  # `max`, or the control group does not exist.
        limits["the container's pids.max"] = int(pids_max.read_text(encoding="utf-8"))
    if not limits:
        return judged([], "unlimited")
    which = min(limits, key=limits.__getitem__)
    least = limits[which]
    findings = []
    if least < PROCESSES:
        text = f"{least} processes and threads ({which}): several ranks with their threads use them up"
        key = "limit_own" if which == "ulimit -u" else "pids_limit"
        findings.append(finding(key, text=text, letter="u", wanted=2 * PROCESSES))
    return judged(findings, f"{least:,} ({which})", measures={"limit": least})


def memory(scope: Scope, meminfo: Path = MEMINFO, group: Path = CGROUP) -> Result:
    """Judge the available memory by the kernel and by the container's limit."""
    memory_bytes = host_memory(meminfo, group)
    if memory_bytes is None:
        return not_applicable(f"{meminfo} cannot be read, or has no MemAvailable")
    whole, free = memory_bytes
    findings = []
    if free < LITTLE_SHARE * whole:
        findings.append(finding("host_memory", free=size(free), whole=size(whole)))
    measures = {"total_bytes": whole, "available_bytes": free}
    return judged(findings, f"{size(free)} available of {size(whole)}", measures=measures)


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
