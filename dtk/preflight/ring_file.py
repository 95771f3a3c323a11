"""One rank's calls as the ring of a run (`diagnostics.evidence.ring.format`), no larger than it must be."""

import os
import socket

from diagnostics.evidence.ring.format import (
    FINISHED,
    GROUP,
    GROUPS_AT,
    HEADER,
    ISSUED,
    MAGIC,
    RECORD,
    STARTED,
    TABLE_HEAD,
    TEXT_HEAD,
    VERSION,
    file_bytes,
)
from diagnostics.evidence.ring.groups import format_ranks
from dtk.preflight.calls import Entry, Record
from dtk.preflight.match import Standing

TICK_S = 1e-3
"""Between two calls of a rank, as nothing ran."""
_LONGEST_TEXT = (1 << 16) - 1


class RingFile:
    """One rank's calls in the form of `diagnostics.evidence.ring.format`, no larger than it must be."""

    def __init__(self, record: Record, world_size: int, standing: Standing, slots: int) -> None:
        self.record = record
        self.world_size = world_size
        self.standing = standing
        self.slots = min(slots, standing.issued)
        self._texts: dict[str, int] = {"": 0}
        self._table = bytearray(TABLE_HEAD.size)

    def data(self) -> bytes:
        """The file."""
        record = self.record
        last: list[list[int]] = [[0, 0] for _ in record.groups]
        blocked = self._blocked()
        rows = self._rows(last, blocked)
        groups = b"".join(
            GROUP.pack(
                *(self._text(one.name.partition("#")[0]), self._text(format_ranks(one.ranks)), self._text(one.desc)),
                *(int(one.name.partition("#")[2] or 0), *last[index]),
            )
            for index, one in enumerate(record.groups)
        )
        TABLE_HEAD.pack_into(self._table, 0, len(self._table))
        host = socket.gethostname().encode()[:64]
        about = (
            VERSION,
            record.rank,
            self.world_size,
            0,
            os.getpid(),
            len(record.groups),
            self.slots,
            len(self._table),
        )
        head = HEADER.pack(MAGIC, *about, 1.0, host).ljust(GROUPS_AT, b"\0")
        data = head + groups + rows + bytes(self._table)
        assert len(data) == file_bytes(len(record.groups), self.slots, len(self._table))
        return data

    def _blocked(self) -> dict[int, int]:
        """Group -> number of its oldest call in which this rank stands: later ones of the group cannot be over."""
        pending = self.standing.pending
        if pending is None:
            return {}
        entries = self.record.program.entries
        numbers = [event for event in self.record.program.steps() if event >= 0]
        return {entries[numbers[pending]].group: pending}

    def _rows(self, last: list[list[int]], blocked: dict[int, int]) -> bytes:
        """The last calls; `last` gets the positions of each group that were reached and were left."""
        entries = self.record.program.entries
        incomplete = set(self.standing.incomplete)
        sent = [0] * len(self.record.groups)
        rows: list[bytes] = [b""] * self.slots
        number = -1
        for event in self.record.program.steps():
            if event < 0:
                continue
            number += 1
            if number >= self.standing.issued:
                break
            entry = entries[event]
            group = entry.group
            behind = group in blocked and number >= blocked[group]
            if entry.p2p:
                sent[group] += 1
                seq = sent[group]
            else:
                seq = last[group][0] = last[group][0] + 1
                if not behind:
                    last[group][1] = seq
            stands = number == self.standing.pending
            state = STARTED if stands else ISSUED if number in incomplete else FINISHED
            if number >= self.standing.issued - self.slots:
                rows[number % self.slots] = self._row(number, entry, seq, state, asynchronous=state == ISSUED)
        return b"".join(rows)

    def _row(self, number: int, entry: Entry, seq: int, state: int, *, asynchronous: bool) -> bytes:
        ranks = self.record.groups[entry.group].ranks
        root = entry.root if entry.root < 0 else ranks[entry.root]
        began_s = 1.0 + number * TICK_S
        texts = (entry.site, entry.region, entry.op, entry.user_op, entry.dtype)
        sizes = (entry.inputs, entry.outputs, entry.reduce_op, entry.splits)
        return RECORD.pack(
            *(number + 1, began_s, 0.0 if state == STARTED else began_s, entry.step, entry.group),
            *(self._text(text) for text in texts),
            *(root, entry.tag),
            *(self._text(text) for text in sizes),
            *(seq, entry.numel, entry.amount, 0),
            *(state, bool(entry.p2p), asynchronous, 0, 0, number + 1),
        )

    def _text(self, value: str) -> int:
        number = self._texts.get(value)
        if number is None:
            data = value.encode("utf-8", "replace")[:_LONGEST_TEXT]
            self._table += TEXT_HEAD.pack(len(data)) + data
            number = self._texts[value] = len(self._texts)
        return number
