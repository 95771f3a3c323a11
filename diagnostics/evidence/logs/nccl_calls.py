"""The last collectives of each process as NCCL logs them (NCCL_DEBUG_SUBSYS=COLL).

Such lines fill gigabytes, so only the end of a log is read: no rank is far behind one that waits for it.
"""

import re
from collections import defaultdict, deque

from msgspec import Struct, field

from diagnostics.contract.files import table_beside
from diagnostics.evidence.calls import NEEDS_ALL, ROOTED, Described, Wire, describe, operation
from diagnostics.evidence.model import LogFact

KIND = "nccl_calls"
COUNTED = NEEDS_ALL | ROOTED | {"all_to_all"}  # Operations that every rank of a communicator counts.
_BLOCKS, _LAST = 2, 1000  # Blocks of the log that are read, and calls kept per communicator and process.
_TABLE = table_beside(__file__)
_CALL = re.compile("".join(_TABLE["call"]).encode())
_DTYPES, _REDUCTIONS = (dict(enumerate(_TABLE[name])) for name in ("dtypes", "reductions"))


class NcclCalls(Struct):
    """The blocks of a log that hold the last of these lines, each with the number of its first line."""

    blocks: deque[tuple[bytes, int]] = field(default_factory=lambda: deque(maxlen=_BLOCKS))

    def feed(self, data: bytes, number: int) -> None:
        """Take a block of whole lines."""
        if b": opCount " in data:
            self.blocks.append((data, number))

    def facts(self, file: str) -> list[LogFact]:
        """Return a fact for each communicator of a process, with its `calls`: `opCount` -> those of a group, or one."""
        last: dict[tuple[bytes, ...], deque[tuple[re.Match[bytes], int]]]
        last = defaultdict(lambda: deque(maxlen=_LAST))
        for data, number in self.blocks:
            for match in _CALL.finditer(data):
                last[match.group("process", "device", "nranks", "comm")].append((match, number))
        facts = []
        for (process, device, nranks, _), matches in last.items():
            match, number = matches[-1]
            calls: defaultdict[int, list[Described]] = defaultdict(list)
            for call, _ in matches:
                calls[int(call["place"], 16)].append(_described(call))
            fields = {"process": process.decode(), "device": int(device), "nranks": int(nranks), "calls": calls}
            fields["comm_rank"] = None if match["rank"] is None else int(match["rank"])
            line = number + match.string.count(b"\n", 0, match.start())
            facts.append(LogFact(KIND, None, file, line, match[0].decode(), fields))
        return facts


def _described(call: re.Match[bytes]) -> Described:
    op, count, dtype = operation(call["op"].decode()), int(call["count"]), _DTYPES.get(int(call["dtype"]), "")
    reduce_op = _REDUCTIONS.get(int(call["reduce"]), "") if "reduce" in op else ""
    wire = Wire(op, (count,), (dtype,), int(call["root"]) if op in ROOTED else None, reduce_op)
    return describe(op, wire, [[count]], dtype)
