"""dtk's rings of collectives: the calls of one rank in the common form of `calls`."""

import json

from diagnostics.evidence.calls import Call, Dump, GroupKey, Wire, describe, dtype, operation
from diagnostics.evidence.limits import head, whole
from diagnostics.evidence.model import Frame
from diagnostics.evidence.reader import Handle, Reader, opens
from diagnostics.evidence.ring.format import HEADER, MAGIC, RingDump, RingGroup, RingRecord, parse

RECORDER = "dtk"
_SENDS = {"send": "send", "isend": "send", "recv": "recv", "irecv": "recv"}
_UNEVEN = {"all_to_all", "gather", "scatter", "all_gather_coalesced"}
"""Operations for which ranks may contribute different amounts."""


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is a ring."""
    return head.startswith(MAGIC)


class RingFile(Handle, frozen=True):
    """A ring of a rank of dtk."""

    kind = "ring"

    def load(self) -> list[Dump]:
        """Return the calls of the rank as one dump, like `FlightFile.load`."""
        return [_dump(self.read(), self.file)]

    def read(self) -> RingDump:
        """Return the records as they were written; raises what `load` does."""
        return parse(whole(self.path, self.limits))

    def host(self) -> str:
        """Return the machine that the rank ran on, from the file's header, or an empty text if that is unreadable."""
        try:
            start = head(self.path)
        except OSError:
            return ""
        if not recognise(start) or len(start) < HEADER.size:
            return ""
        name: bytes = HEADER.unpack_from(start)[-1]
        return name.rstrip(b"\0").decode("utf-8", "replace")


def _dump(ring: RingDump, file: str) -> Dump:
    calls = [call_of(record) for record in ring.records]
    last = calls[-1] if calls else None
    return Dump(
        rank=ring.rank,
        file=file,
        recorder=RECORDER,
        calls=calls,
        counters={_key(group): (group.last_started, _completed(ring, group)) for group in ring.groups},
        members={_key(group): group.ranks for group in ring.groups},
        world_size=ring.world_size,
        step=last.step if last else None,
        region=last.region if last else "",
        attempt=ring.attempt,
        damaged=ring.torn,
    )


def _completed(ring: RingDump, group: RingGroup) -> int:
    """Return the last collective of a group that completed, as far as is known.

    A collective that raised at the end returned but never completed. One that was launched asynchronously and that
    the rank waits for now also returned without completing.
    """
    completed = group.last_finished
    for record in reversed(ring.records):
        if record.group == group and not record.is_p2p:
            if record.state != "raised" or record.seq > completed:
                break
            completed = record.seq - 1
    waits = [r.seq - 1 for r in ring.records if r.state == "started" and not r.is_p2p and r.group == group]
    return min([completed, *waits])


def _key(group: RingGroup) -> GroupKey:
    name = f"{group.name}#{group.generation}" if group.generation else group.name
    return GroupKey(RECORDER, name, group.desc)


def call_of(record: RingRecord) -> Call:
    """Return a record in the common form of calls."""
    op = operation(record.op)
    sizes = _sizes(record.input_sizes) or _sizes(record.output_sizes)
    kind = dtype(record.dtype)
    root = None if record.is_p2p else record.root
    uneven = record.is_p2p or op in _UNEVEN or record.amount < 0
    wire = Wire(op, () if uneven else (record.amount,), (kind,) if kind else (), root, record.reduce_op)
    p2p = _SENDS.get(record.op, "")
    return Call(
        key=_key(record.group),
        seq=record.seq,
        described=describe(record.op, wire, sizes, kind, p2p, record.root, record.tag),
        done=record.state == "finished",
        created_s=record.time_s,
        stack=(Frame(record.file, record.line, record.function),) if record.file else (),
        user_op=record.user_op,
        p2p=p2p,
        peer=record.root if p2p else None,
        tag=record.tag if p2p else None,
        step=record.step,
        region=record.region,
        completion_known=not record.asynchronous or record.state == "started",
    )


def _sizes(text: str) -> list[object]:
    """Return the shapes of the tensors; empty if the record had no room for them."""
    try:
        value = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


READER = Reader(
    kind=RingFile.kind, recognise=recognise, open=opens(RingFile), suffixes=(".ring",), of_rank=True, has_calls=True
)
