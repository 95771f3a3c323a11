"""This rank's position in a memory-mapped file that survives SIGKILL: step, open region, time; 512 bytes per beat."""

import json
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from diagnostics.contract.artifacts import HEARTBEAT_BYTES
from diagnostics.contract.files import kernel_text
from dtk.parallel.regions import Region
from dtk.record.guard import guarded

MAPPABLE = {"ext2", "ext3", "ext4", "xfs", "tmpfs", "overlay"}
"""Local file systems that rewrite a block in place. Where a rewrite allocates a new block (btrfs, zfs), a full disk
would kill the process with SIGBUS at its next beat; a remote file system may stall it."""
PUBLISH_EVERY_S = 0.5  # Chosen: the watch polls at this rate.
LABEL_BYTES = 200  # Chosen: longest name of a region; the host has at most 64 (HOST_NAME_MAX of Linux), figures 200.
_LABELS = 4096  # Chosen: far more names than a job has; beyond it the cache is cleared.
_BEAT = b'{"beat": %d, "step": %b, "region": %b, "time_s": %.6f%b%d}'


class HeartbeatFile:
    """Observer that rewrites the heartbeat whenever a region opens or closes."""

    def __init__(self, path: Path, attempt: int) -> None:
        self.path = path
        self.attempt = attempt
        self._beat = 0
        self._step = b"null"
        self._labels: dict[str, bytes] = {}
        self._tail = b""
        self._memory: mmap.mmap | bytearray = bytearray(HEARTBEAT_BYTES)
        self._stop = threading.Event()

    def start(self) -> None:
        """Create the file; OSError if the folder is full or read-only."""
        about = {"pid": os.getpid(), "host": socket.gethostname(), "attempt": self.attempt}
        self._tail = f', {json.dumps(about)[1:-1]}, "beat_end": '.encode()
        self._memory = mapped(
            self.path, HEARTBEAT_BYTES, lambda file: os.pwrite(file, bytes(self._memory), 0), "heartbeat", self._stop
        )
        self._write("start")

    @property
    def beats(self) -> int:
        """Number of starts and ends of steps and regions."""
        return self._beat

    def begin_step(self, step: int) -> None:
        """Mark the start of step `step`, counted from 1."""
        self._step = b"%d" % step
        self._write(None)

    def enter(self, region: Region) -> None:
        """Record that the region is now the innermost one."""
        self._write(region.name)

    def exit(self, region: Region) -> None:
        """Record that the parent is the innermost region again."""
        self._write(region.parent.name if region.parent is not None else None)

    def close(self, region: str | None) -> None:
        """Write the last beat: `end` if this rank exited normally, else the region in which it failed."""
        self._write(region)
        self._stop.set()

    def _write(self, name: str | None) -> None:
        beat = self._beat = self._beat + 1
        label = b"null" if name is None else self._labels.get(name)
        if label is None:
            if len(self._labels) > _LABELS:
                self._labels.clear()
            label = self._labels[str(name)] = _label(str(name))
        text = _BEAT % (beat, self._step, label, time.time(), self._tail, beat)
        self._memory[:] = text.ljust(HEARTBEAT_BYTES)


def _label(name: str) -> bytes:
    """Return a region's name as JSON of at most `LABEL_BYTES`, shortened if necessary."""
    label = b""
    for length in range(LABEL_BYTES, 0, -1):
        if len(label := json.dumps(name[:length]).encode()) <= LABEL_BYTES:
            break
    return label


def mapped(
    path: Path, size_bytes: int, publish: Callable[[int], object], name: str, stop: threading.Event
) -> mmap.mmap | bytearray:
    """Return the mapped memory of a fully allocated file: a hole would kill the process when the disk is full.

    If the file cannot be mapped, `publish` is called with the open file periodically on a thread `dtk-<name>`, and once
    more after `stop` is set. OSError if the folder is full or read-only.
    """

    def keep(copy: int) -> None:
        done = False
        while not done:
            done = stop.wait(PUBLISH_EVERY_S)
            with guarded(name):
                publish(copy)

    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.truncate(file, size_bytes)
        if can_map(path):
            os.posix_fallocate(file, 0, size_bytes)
            return mmap.mmap(file, size_bytes)
        threading.Thread(target=keep, args=(os.dup(file),), name=f"dtk-{name}", daemon=True).start()
        return bytearray(size_bytes)
    finally:
        os.close(file)


def can_map(path: Path) -> bool:
    """Whether a page mapped from this path can neither stall nor fail; True if unknown (not Linux)."""
    return filesystem(path) in MAPPABLE | {""}


def filesystem(path: Path) -> str:
    """Return the file system type of a path (ext4, nfs4, tmpfs ...); empty if unknown."""
    where = str(path.resolve())
    best, kind = "", ""
    for line in kernel_text(Path("/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind
