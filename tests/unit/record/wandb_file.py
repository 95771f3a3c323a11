"""What W&B wrote offline: frames of a LevelDB log, each a record of its own protocol, read by its own messages."""

import json
import struct
from pathlib import Path
from typing import Any

BLOCK_BYTES, HEADER = 32768, struct.Struct("<IHB")


def records(path: Path) -> list[Any]:
    """The records of a .wandb file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts, result = path.read_bytes(), 7, b"", []
    assert data[:4] == b":W&B"
    while at + HEADER.size <= len(data):
        if (block_bytes := BLOCK_BYTES - at % BLOCK_BYTES) < HEADER.size:
            at += block_bytes
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        parts += data[at + HEADER.size : at + HEADER.size + length]
        at += HEADER.size + length
        if kind in (1, 4):  # Whole, or the last part.
            result.append(Record.FromString(parts))
            parts = b""
    return result


def items(part: Any) -> dict[str, Any]:
    """Name -> value of the items of a history, a summary or a configuration; nested names with slashes."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in part}
