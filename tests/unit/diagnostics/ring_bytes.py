"""The ring of a rank that made given calls, byte by byte."""

import json
from dataclasses import dataclass
from math import prod

from diagnostics.evidence.ring import format as layout
from diagnostics.evidence.ring.format import FINISHED, ISSUED, file_bytes

SLOTS, TABLE = 64, 8192
START_S = 1_790_000_000.0


@dataclass(frozen=True, slots=True)
class RingCall:
    """A call on the group of all ranks."""

    op: str
    numel: int = 8
    peer: int | None = None
    """Of a send or receive."""
    splits: tuple[list[int], list[int]] | None = None
    state: int | None = None
    """Default: messages are issued, collectives are finished."""
    step: int = 1
    sizes: tuple[list[int], list[int]] = ((8, 4), (8, 4))  # type: ignore[assignment]


def ring(rank: int, world: int, calls: list[RingCall], line: int = 12, members: str = "") -> bytes:
    """Return the file of one rank, whose calls are on the group of `members`, such as `2-3`; default: all."""
    texts = [""]

    def text(value: str) -> int:
        if value not in texts:
            texts.append(value)
        return texts.index(value)

    data = bytearray(file_bytes(1, SLOTS, TABLE))
    about = (layout.MAGIC, layout.VERSION, rank, world, 0, 4711, 1, SLOTS, TABLE, START_S, b"node-1")
    layout.HEADER.pack_into(data, 0, *about)
    seq = {True: 0, False: 0}
    site = text(f"/job/train.py:{line}\ttrain")
    for number, call in enumerate(calls, 1):
        p2p = call.peer is not None
        seq[p2p] += 1
        state = call.state or (ISSUED if p2p else FINISHED)
        began_s = START_S + number + rank / 1000
        sizes = [text(json.dumps([list(size)])) for size in call.sizes]
        splits = text(json.dumps(call.splits)) if call.splits else 0
        places = (0, site, 0, text(call.op), 0, text("float32"), call.peer if p2p else -1, 0)
        amount = -1 if call.splits else call.numel
        fields = (*places, *sizes, 0, splits, seq[p2p], call.numel, amount, 0 if p2p else 99, state, p2p, p2p, 0, 0)
        record = (number, began_s, began_s + 0.1 if state == FINISHED else 0.0, call.step, *fields, number)
        at = layout.GROUPS_AT + layout.GROUP.size + (number - 1) * layout.RECORD.size
        layout.RECORD.pack_into(data, at, *record)
    done = sum(call.peer is None and call.state in (None, FINISHED) for call in calls)
    group = (text("0"), text(members or f"0-{world - 1}"), text("default_pg"), 0, seq[False], done)
    layout.GROUP.pack_into(data, layout.GROUPS_AT, *group)
    table = b"".join(layout.TEXT_HEAD.pack(len(value)) + value.encode() for value in texts[1:])
    at = len(data) - TABLE
    layout.TABLE_HEAD.pack_into(data, at, layout.TABLE_HEAD.size + len(table))
    data[at + layout.TABLE_HEAD.size : at + layout.TABLE_HEAD.size + len(table)] = table
    return bytes(data)


def run_files(mesh: dict[str, int], config: str = "", state: str = "hung", step: int = 2) -> dict[str, str | bytes]:
    """Return the records of a dtk run on this mesh."""
    degrees = {"pp": 1, "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, **mesh}
    world = prod(size for name, size in degrees.items() if name != "ep")  # ep takes no ranks of its own.
    about = {"run_id": "r", "schema_version": 1, "mesh": degrees, "topology": {"world_size": world, "nproc": world}}
    return {
        "status.json": json.dumps({"state": state, "step": step}),
        "manifest.json": json.dumps({**about, "world_size": world}),
        "config.yaml": config,
    }
