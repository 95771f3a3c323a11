"""Folds the lines of NCCL's watchdogs as they are read: they decide a hang, and each rank may print several."""

from collections import Counter

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.evidence.model import LogFact
from diagnostics.evidence.values import MOST_RANKS

_STATES = frozenset({"watchdog_status", "monitor_stuck", "flight_dump_signal"})
"""Kinds of which a later line of a rank replaces the one before it."""
KINDS = _STATES | {"watchdog_timeout", "watchdog_abort", "collective_stack"}
MOST = MOST_RANKS
"""Maximum number of facts kept of one log: a rank that hangs leaves two, or three with its stack."""
PER_KIND_AND_RANK = 64


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
        if self.per_kind[kind, rank] >= PER_KIND_AND_RANK or self.kept >= MOST:
            return False
        self.per_kind[kind, rank] += 1
        self.kept += 1
        self.places.setdefault(about, len(facts))  # Whatever the group.
        self.places[*about, name] = len(facts)
        facts.append(fact)
        return True
