"""Lines about NCCL that a log repeats, folded as they are read: its last calls, and what watchdogs report.

NCCL logs each collective (NCCL_DEBUG_SUBSYS=COLL). Such lines fill gigabytes, so only the end of a log is read: no rank
is far behind one that waits for it. The lines of torch's watchdogs decide a hang, and each rank may print several.
"""

import re
from collections import Counter, defaultdict, deque

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.files import table_beside
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import NEEDS_ALL, ROOTED, Described, Wire, describe, operation
from diagnostics.evidence.model import MOST_RANKS, LogFact

CALLS = "nccl_calls"
COUNTED = NEEDS_ALL | ROOTED | {"all_to_all"}  # Operations that every rank of a communicator counts.
_BLOCKS, _LAST = 2, 1000  # Blocks of the log that are read, and calls kept per communicator and process.
_TABLE = table_beside(__file__)
_CALL = re.compile("".join(_TABLE["call"]).encode())
_DTYPES, _REDUCTIONS = (dict(enumerate(_TABLE[name])) for name in ("dtypes", "reductions"))
_STATES = frozenset({"watchdog_status", "monitor_stuck", "flight_dump_signal"})
"""Kinds of which a later line of a rank replaces the one before it."""
WATCHDOGS = _STATES | {"watchdog_timeout", "watchdog_abort", "collective_stack"}
MOST_WATCHDOG_LINES = MOST_RANKS
"""Maximum number of facts kept of one log: a rank that hangs leaves two, or three with its stack."""
PER_KIND_AND_RANK = 64


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
            calls = grouped((int(call["place"], 16), _described(call)) for call, _ in matches)
            fields = {"process": process.decode(), "device": int(device), "nranks": int(nranks), "calls": calls}
            fields["comm_rank"] = None if match["rank"] is None else int(match["rank"])
            line = number + match.string.count(b"\n", 0, match.start())
            facts.append(LogFact(CALLS, None, file, line, match[0].decode(), fields))
        return facts


def _described(call: re.Match[bytes]) -> Described:
    op, count, dtype = operation(call["op"].decode()), int(call["count"]), _DTYPES.get(int(call["dtype"]), "")
    reduce_op = _REDUCTIONS.get(int(call["reduce"]), "") if "reduce" in op else ""
    wire = Wire(op, (count,), (dtype,), int(call["root"]) if op in ROOTED else None, reduce_op)
    return describe(op, wire, [[count]], dtype)


class Watchdogs(Struct):
    """Keeps of each rank its calls that timed out, once each, and its last state in each group."""

    places: dict[tuple[object, ...], int] = field(default_factory=dict)
    """What a fact is about -> its index in the list."""
    per_kind: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    kept: int = 0

    def take(self, fact: LogFact, facts: list[LogFact]) -> bool:
        """Add a fact to `facts`, or fold it into the one that it repeats. Return False if there is no room for it."""
        kind, rank, fields = fact.kind, fact.rank, fact.fields
        name = str(fields.get("guid") or fields.get("group") or "")
        about: tuple[object, ...] = (kind, rank)
        if kind == "watchdog_timeout":
            about = (*about, fields.get("seq"), fields.get("op"), fields.get("numel_in"))
            if not name and about in self.places:
                return True  # torch prints a timeout without its group first, and repeats it with the group.
            if name and (at := self.places.pop((*about, ""), None)) is not None:
                facts[at] = replace(facts[at], fields=fields | facts[at].fields)
                self.places[*about, name] = at
                return True
        elif kind == "watchdog_abort" and (
            self.per_kind["watchdog_timeout", rank] or self.per_kind["watchdog_status", rank]
        ):
            about = (kind,)  # The rank has told more already: one such line of the job is enough.
        else:  # A stack belongs to the timeout before it, so that equal ones in two places are two.
            about = (*about, fact.line if kind == "collective_stack" else fields.get("work"))
        if (at := self.places.get((*about, name))) is not None:
            said = facts[at].fields if kind == "monitor_stuck" else {}  # Only one of its lines says how long.
            facts[at] = replace(fact, fields=said | fields) if kind in _STATES else facts[at]
            return True
        if self.per_kind[kind, rank] >= PER_KIND_AND_RANK or self.kept >= MOST_WATCHDOG_LINES:
            return False
        self.per_kind[kind, rank] += 1
        self.kept += 1
        self.places.setdefault(about, len(facts))  # Whatever the group.
        self.places[*about, name] = len(facts)
        facts.append(fact)
        return True
