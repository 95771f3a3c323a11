"""Repeated observations of each rank from outside: whether its main thread was blocked, since when, and where. A thread
in a wait that does not end uses no CPU time and has no context switches (measured: gloo's waits, locks, pipes).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from statistics import median_low

from msgspec import Struct, field

from diagnostics.analysis import source_text
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import Evidence, Frame, integer
from diagnostics.evidence.readers.process import KIND, Moment
from diagnostics.evidence.stacks.dumps import is_native, main_thread

Counters = Mapping[tuple[str, str], Mapping[str, int]]  # (file, function) of a frame -> whole numbers in its variables.
IDLE = 0.05  # Fraction of a core below which a thread counts as idle: polling ten times a second uses 0.001.
BUSY = 0.5  # Fraction of a core above which a thread computes; below it, the kernel says what the thread waits for.


class Observation(Struct, frozen=True):
    """All observations of one rank."""

    file: str
    last: Moment
    blocked_s: float
    """Time up to the last observation during which no wait ended."""
    idle_s: float
    """Time up to the last observation at the same lines and with almost no CPU time."""
    fixed_s: float
    """Time up to the last observation at the same lines."""
    busy: bool
    """Whether its main thread computed before the last observation."""
    call: dict[str, str]
    counters: dict[tuple[str, str], dict[str, int]]
    groups: int | None = None
    """Number of process groups that it has created; None = not known."""
    lock_holder: int | None = None
    """The rank that holds the file lock for which it waits."""
    connections: dict[int, int] = field(default_factory=dict)
    """Number of connections to each other rank of its host."""

    def root(self, world: int) -> int | None:
        """Return the rank of `world` ranks that it names as the root of its call; None if it names none."""
        roots = (integer(self.call.get(name), 0, world) for name in ("src", "dst"))
        return next((root for root in roots if root is not None), None)

    def members(self, rank: int, everyone: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ranks of the group that its call is in, of `everyone` in the job; empty if that is not certain.

        Gloo connects any two members of a group. The first group is that of all ranks; the others must have the same
        members, as a stack does not show which of them it is.
        """
        if self.call.get("group") != "other":
            return everyone if "group" in self.call else ()
        shared = {peer: count - 1 for peer, count in self.connections.items() if peer != rank}
        certain = len(shared) == len(everyone) - 1 and {*shared.values()} <= {0, (self.groups or 1) - 1}
        return tuple(sorted({rank, *filter(shared.get, shared)})) if certain else ()

    @property
    def exited(self) -> bool:
        """Whether its process has exited."""
        return self.last.state in ("", "Z", "X")

    @property
    def stopped(self) -> bool:
        """Whether it is stopped by a signal or a debugger."""
        return self.last.state in ("T", "t")


def observations(evidence: Evidence) -> dict[int, Observation]:
    """Return the observations of each rank; empty if no processes were observed."""
    paths: dict[int, list[list[Frame]]] = {}
    for dump in evidence.stacks:
        if dump.rank is not None and (main := main_thread(dump)) is not None:
            paths.setdefault(dump.rank, []).append([frame for frame in main.frames if not is_native(frame)])
    rank_of = {fact.fields["pid"]: fact.rank for fact in evidence.facts if fact.kind == KIND and "pid" in fact.fields}
    observed = {}
    for fact in evidence.facts:
        if fact.kind == KIND and fact.rank is not None:
            windows = [(before[1], after[0]) for before, after in pairwise(fact.fields["looks"])]
            same = [before == after for before, after in pairwise(paths.get(fact.rank, []))]
            same = same if len(same) == len(windows) else [not paths.get(fact.rank)] * len(windows)
            shares = [(end.cpu_s - start.cpu_s) / max(end.time_s - start.time_s, 0.001) for start, end in windows]
            idle = [share < IDLE and fixed for share, fixed in zip(shares, same, strict=True)]
            waits = [end.switches == start.switches for start, end in windows]
            still = [fixed and waited for fixed, waited in zip(idle, waits, strict=True)]
            lasting = (_trailing(windows, still), _trailing(windows, idle), _trailing(windows, same))
            last, busy = fact.fields["last"], bool(shares) and shares[-1] > BUSY
            call, groups = fact.fields["call"], fact.fields.get("groups")
            call = {**call, "group": "default"} if groups == 1 else call  # The group may be passed as any object.
            more = (call, fact.fields["counters"], groups if isinstance(groups, int) else None)
            holder = rank_of.get(fact.fields.get("lock_holder")), fact.fields.get("connections", {})
            observed[fact.rank] = Observation(fact.file, last, *lasting, busy, *more, *holder)
    return observed


def _trailing(windows: list[tuple[Moment, Moment]], flags: list[bool]) -> float:
    rows = takewhile(lambda row: row[1], zip(reversed(windows), reversed(flags), strict=True))
    return sum(end.time_s - start.time_s for (start, end), _ in rows)


def out_of_round(observed: Mapping[int, Observation], call: Call) -> set[int]:
    """Return the ranks more than a round away from most, by the variables of the outermost loop around a call."""
    for at in call.stack[::-1]:
        for rounds in loop_rounds(at, call.created_s, [own.counters for own in observed.values()]):
            numbers = sorted(number for number in rounds if number is not None)
            if len(numbers) == len(rounds) > 2 and numbers[-1] - numbers[0] > 1:
                middle, of_ranks = median_low(numbers), zip(observed, rounds, strict=True)
                return {rank for rank, number in of_ranks if number is not None and abs(number - middle) > 1}
    return set()


def loop_rounds(at: Frame, when_s: float | None, ranks: Sequence[Counters]) -> list[list[int | None]]:
    """Return, of each variable of the loops around a line, its values on these ranks; None = not known."""
    names, _ = source_text.loop_variables(at.file, [at.line], when_s)
    return [[counters.get((at.file, at.function), {}).get(name) for counters in ranks] for name in names]
