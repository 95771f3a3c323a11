"""Rings as `dtk.record.ring` writes them, of ranks that made a row of calls on the default group."""

from pathlib import Path

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import (
    FINISHED,
    GROUP,
    GROUPS_AT,
    HEADER,
    MAGIC,
    RECORD,
    TABLE_HEAD,
    TEXT_HEAD,
    VERSION,
    file_bytes,
)

SLOTS, TABLE_BYTES = 16, 4096
START_S = 1_790_000_000.0


def write_ring(
    path: Path,
    rank: int,
    world: int,
    states: list[int],
    line: int = 5,
    host: str = "node-1",
    site: tuple[str, str] = ("/job/train.py", "train"),
) -> RingFile:
    """A ring with one all_reduce for each state.

    Args:
        path: of the file.
        rank, world: of the header.
        states: STARTED, FINISHED, ... of each call; `last_finished` counts all that returned, also by raising.
        line: of the program that made them.
        host: of the header.
        site: file and function that made them.
    """
    texts = [
        f"0-{world - 1}",
        "0",
        "default_pg",
        f"{site[0]}:{line}\t{site[1]}",
        "all_reduce",
        "float32",
        "[[8]]",
        "SUM",
    ]
    data = bytearray(file_bytes(1, SLOTS, TABLE_BYTES))
    HEADER.pack_into(data, 0, MAGIC, VERSION, rank, world, 0, 4711, 1, SLOTS, TABLE_BYTES, START_S, host.encode())
    returned = sum(state != 1 for state in states)
    GROUP.pack_into(data, GROUPS_AT, 2, 1, 3, 0, len(states), returned)
    table = b"".join(TEXT_HEAD.pack(len(text)) + text.encode() for text in texts)
    at = len(data) - TABLE_BYTES
    TABLE_HEAD.pack_into(data, at, TABLE_HEAD.size + len(table))
    data[at + TABLE_HEAD.size : at + TABLE_HEAD.size + len(table)] = table
    for seq, state in enumerate(states, 1):
        began_s = START_S + seq + rank / 1000
        ended_s = began_s + 0.5 if state == FINISHED else 0.0
        texts_of = (0, 4, 0, 5, 0, 6)
        fields = (seq, began_s, ended_s, -1, *texts_of, -1, 0, 7, 0, 8, 0, seq, 8, 8, 99, state, 0, 0, 0, 0, seq)
        RECORD.pack_into(data, GROUPS_AT + GROUP.size + (seq - 1) % SLOTS * RECORD.size, *fields)
    path.write_bytes(data)
    return RingFile(path, path.name, rank, Limits())
