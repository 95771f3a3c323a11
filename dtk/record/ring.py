"""Writes the ring, this rank's last collectives, to a memory-mapped file (`diagnostics.evidence.ring.format`)."""

import mmap
import os
import socket
import struct
import threading
import time
from pathlib import Path

from diagnostics.evidence.ring import format as layout
from dtk.record.heartbeat import mapped

GROUPS = 128  # Chosen: more than a mesh of all dimensions has on one rank.
SLOTS = 2048  # Chosen: number of calls kept: about as many as the flight recorder keeps.
TABLE_BYTES = 256 << 10
"""Chosen: space for the strings of call sites, regions, groups and sizes; when full, further ones read as empty."""
LONGEST_TEXT = 400  # Chosen: paths and lists of ranks are shorter; longer ones are truncated.
REWRITTEN = 64  # Chosen: records before the new ones that a thread rewrites: their calls may have returned since.
_STARTED_AT, _FINISHED_AT = layout.GROUP.size - 16, layout.GROUP.size - 8  # A group's last two fields, see the format.
Ints = tuple[int, ...]
_LAST, _NUMBER, _TIME = struct.Struct("<q"), struct.Struct("<Q"), struct.Struct("<d")


class Ring:
    """One rank's ring. The caller must hold a lock around `add_group`, `text`, `begin` and `sample`."""

    def __init__(self, path: Path, rank: int, world_size: int, attempt: int) -> None:
        self.path = path
        self.rank, self.world_size, self.attempt = rank, world_size, attempt
        self.issued = 0  # Number of recorded calls.
        self.returned = 0  # Number of calls that have returned.
        self._memory: mmap.mmap | bytearray = bytearray()
        self._texts: dict[str, int] = {"": 0}
        self._used = layout.TABLE_HEAD.size
        self._groups = 0
        self._samples: dict[int, tuple[int, int]] = {}  # Text of a place -> its slot and number of samples.
        self._records_at = layout.GROUPS_AT + GROUPS * layout.GROUP.size
        self._table_at = self._records_at + SLOTS * layout.RECORD.size
        self._published = 0, layout.TABLE_HEAD.size  # Records and end of the strings that a thread has written.
        self._stop = threading.Event()

    def start(self) -> None:
        """Create the file; OSError if the folder is full or read-only."""
        self.path.unlink(missing_ok=True)
        size_bytes = layout.file_bytes(GROUPS, SLOTS, TABLE_BYTES)
        self._memory = mapped(self.path, size_bytes, self._publish, "ring", self._stop)
        about = (layout.VERSION, self.rank, self.world_size, self.attempt, os.getpid(), GROUPS, SLOTS, TABLE_BYTES)
        layout.HEADER.pack_into(self._memory, 0, layout.MAGIC, *about, time.time(), socket.gethostname().encode())
        layout.TABLE_HEAD.pack_into(self._memory, self._table_at, self._used)
        if isinstance(self._memory, bytearray):
            self.path.write_bytes(self._memory)

    def close(self) -> None:
        """Stop the thread, if any; the records stay in the file."""
        self._stop.set()

    def text(self, value: str) -> int:
        """Return the index of an interned string; 0 if it is empty or huge, or if there is no space left."""
        index = self._texts.get(value)
        if index is not None:
            return index
        data = value.encode("utf-8", "replace")[:LONGEST_TEXT] if len(value) < 1 << 16 else b""
        end = self._used + layout.TEXT_HEAD.size + len(data)
        if not data or end > TABLE_BYTES:
            return 0
        at = self._table_at + self._used
        layout.TEXT_HEAD.pack_into(self._memory, at, len(data))
        self._memory[at + layout.TEXT_HEAD.size : self._table_at + end] = data
        layout.TABLE_HEAD.pack_into(self._memory, self._table_at, end)
        self._used = end
        index = self._texts[value] = len(self._texts)
        return index

    def add_group(self, name: str, ranks: tuple[int, ...], desc: str, generation: int) -> int | None:
        """Return the index of a new group; None if there is no space for it or its ranks."""
        members = layout.format_ranks(ranks)
        if self._groups >= GROUPS or len(members) > LONGEST_TEXT or not (where := self.text(members)):
            return None
        index, self._groups = self._groups, self._groups + 1
        place = layout.GROUPS_AT + index * layout.GROUP.size
        layout.GROUP.pack_into(self._memory, place, self.text(name), where, self.text(desc), generation, 0, 0)
        return index

    def begin(self, at: Ints, texts: Ints, sizes: Ints, numbers: Ints, p2p: bool, asynchronous: bool) -> int:
        """Record the start of a call; return its id.

        `at`: index from `add_group`, position in the group, state of `diagnostics.evidence.ring.format`, step in
        progress (-1 = none); `texts`: site, region, op, user's call, dtype; `sizes`: texts of input sizes, output
        sizes, ReduceOp, splits; `numbers`: root or peer, tag, numel, amount, signature. An `asynchronous` call returns
        before completion.
        """
        self.issued = number = self.issued + 1
        group, seq, state, step = at
        root, tag, numel, amount, signature = numbers
        layout.RECORD.pack_into(
            self._memory,
            self._records_at + (number - 1) % SLOTS * layout.RECORD.size,
            *(number, time.time(), 0.0, step, group, *texts, root, tag, *sizes, seq, numel, amount, signature),
            *(state, p2p, asynchronous, 0, 0, number),
        )
        if not p2p:
            _LAST.pack_into(self._memory, layout.GROUPS_AT + group * layout.GROUP.size + _STARTED_AT, seq)
        return number

    def end(self, number: int, group: int, seq: int, state: int, p2p: bool) -> None:
        """Record that the call returned, in `state`."""
        self.returned += 1
        self.state(number, state)
        if not p2p:
            _LAST.pack_into(self._memory, layout.GROUPS_AT + group * layout.GROUP.size + _FINISHED_AT, seq)

    def state(self, number: int, state: int) -> None:
        """Set the state of a call if its record has not been overwritten."""
        at = self._records_at + (number - 1) % SLOTS * layout.RECORD.size
        if _NUMBER.unpack_from(self._memory, at)[0] == number:
            _TIME.pack_into(self._memory, at + layout.ENDED_AT, 0.0 if state == layout.STARTED else time.time())
            self._memory[at + layout.STATE_AT] = state

    def sample(self, place: int) -> None:
        """Count a sample of the main thread at this text, outside any call; a full table drops the rarest place."""
        slot, times = self._samples.pop(place, (len(self._samples), 0))
        if slot == layout.SAMPLES:
            slot, _ = self._samples.pop(min(self._samples, key=lambda text: self._samples[text][1]))
        self._samples[place] = slot, times + 1
        at = layout.SAMPLES_AT + slot * layout.SAMPLE.size
        layout.SAMPLE.pack_into(self._memory, at, place, times + 1, time.time())

    def unsound(self) -> None:
        """Record in the file that a call was missed."""
        self._memory[layout.UNSOUND_AT] = 1

    def snapshot(self) -> bytes:
        """Return the current content of the ring in its file format."""
        return bytes(self._memory)

    def _publish(self, file: int) -> None:
        written, used = self._published
        issued, end, table_at = self.issued, self._used, self._table_at
        records = range(max(written - REWRITTEN, issued - SLOTS, 0), issued)
        parts = [(table_at + used, end - used), (table_at, layout.TABLE_HEAD.size)]
        parts += [(self._records_at + number % SLOTS * layout.RECORD.size, layout.RECORD.size) for number in records]
        for at, size_bytes in (*parts, (0, self._records_at)):
            os.pwrite(file, bytes(self._memory[at : at + size_bytes]), at)
        self._published = issued, end
