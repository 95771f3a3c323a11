"""Collectives that every member issued but that do not complete, and a start-up that never completed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from diagnostics.analysis.divergence.find import Divergence, Vote
from diagnostics.analysis.divergence.identity import agree, at_line, in_backward
from diagnostics.analysis.divergence.single_calls import outside_backward
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.stall.job_state import STALL_S, JobState
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.files import patterns_beside
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.calls import ROOTED, Call
from diagnostics.evidence.endings import Ending, in_object_call, is_victim, kind_of_exception
from diagnostics.evidence.model import Evidence, Frame, LogFact, Stacks, Thread
from diagnostics.evidence.readers.start import KIND
from diagnostics.evidence.readers.watch import VERDICT
from diagnostics.evidence.stacks.activity import Activity, doing

_STARTUP = {
    "rendezvous_timeout", "store_timeout", "store_key_timeout", "missing_variable", "interface_missing",
    "port_in_use", "port_refused", "mesh_failed", "store_barrier",
}  # fmt: skip
_TEXT = patterns_beside(__file__)
"""The table documents what each pattern matches."""
_LINES_STUCK = 6  # torch writes one every 10 s.
_TRANSPORT = {"nccl_ib_error", "nccl_ib_async", "nccl_connect", "nccl_socket_error"}

_LATER = frozenset({"num_nodes_waiting", "_exit_barrier"})
"""Functions of torchrun that query the store while its ranks run, and after they have exited."""


class RootDiffers(Struct, frozen=True):
    """A rooted operation that all ranks issued and only some completed: the ranks disagree on the root."""

    operation: Operation
    calls: dict[int, Call]
    """The call of each rank that hangs in it."""
    complete: tuple[int, ...]
    members: tuple[int, ...]
    deviating: tuple[int, ...]
    """Ranks that named another root, if the roots or gloo's broadcast tree tell which; empty = unknown."""

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that hang in it."""
        return tuple(self.calls)


class NeverCompletes(Struct, frozen=True):
    """A collective that all members entered and that completed on none."""

    operation: Operation
    call: Call
    ranks: tuple[int, ...]
    first: bool
    """Whether no earlier call of the group completed."""
    begun: bool
    """Whether every member is known to execute it; otherwise a device may be stuck in earlier work."""
    transport: tuple[LogFact, ...]

    @property
    def certain(self) -> bool:
        """Whether the transport fails, rather than a device that is stuck before the call."""
        return self.begun or self.first or bool(self.transport)


class Startup(Struct, frozen=True):
    """Ranks that wait for others in init_process_group, or all make no progress before it: records of `dtk watch`."""

    starts: dict[int, LogFact]
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    """Ranks that did not arrive; those without an entry in `starts` left no record. Empty if all wait."""
    stuck: tuple[int, ...]
    """Missing ranks that make no progress. A rank that computes or reads before it arrives is late, not stuck."""
    waited_s: float


class StartupFailed(Struct, frozen=True):
    """A start-up in which the store or the rendezvous failed and no collective was issued."""

    facts: tuple[LogFact, ...]


def roots_differ(job: JobState) -> list[RootDiffers]:
    """Return the rooted operations that completed on some members only, from dumps that do not record the root."""
    cases, taken = [], job.waits.incomparable()
    for operation, waiting in sorted(job.waits.waiting.items()):
        calls = {rank: job.waits.calls[rank, operation] for rank in waiting}
        wire, complete = calls[waiting[0]].wire, tuple(job.waits.complete[operation])
        if wire.op not in ROOTED or not complete or job.waits.absent[operation] or set(waiting) & taken:
            continue
        if operation.key.recorder == "gloo" and wire.root is None:
            members = job.survey.members(operation.key)
            named = deviating_rank(members, tuple(waiting)) if wire.op == "broadcast" else None
            deviating = () if named is None else (named,)
            cases.append(RootDiffers(operation, calls, complete, members, deviating))
            taken |= {*waiting, *complete} | job.waits.reaching(waiting)
    return cases


def never_complete(job: JobState) -> list[NeverCompletes]:
    """Return the collectives that all members entered, in a stalled job in which no rank is missing."""
    if not job.stands_still() or job.waits.waited_for() or job.peer_vanished():
        return []
    facts = tuple(fact for fact in job.evidence.facts if fact.kind in _TRANSPORT)
    cases, taken = [], job.waits.incomparable()
    for operation, waiting in sorted(job.waits.waiting.items()):
        calls = [job.waits.calls[rank, operation] for rank in waiting]
        if operation.peer >= 0 or job.waits.complete[operation] or len(waiting) < 2 or set(waiting) & taken:
            continue
        if len(waiting) < len(job.survey.members(operation.key)) or not all(call.completion_known for call in calls):
            continue
        if not calls[0].wire.amounts and len({call.described.text for call in calls}) > 1:
            continue  # Splits of an all_to_all that differ may not fit each other, which the dumps do not show.
        if operation.key.on_devices and not all(job.waits_first_in(rank, operation) for rank in waiting):
            continue
        lines = job.survey.groups[operation.key].lines
        first = all(lines[rank].done <= 0 for rank in waiting)
        begun = not operation.key.on_devices or all(call.begun for call in calls)
        cases.append(NeverCompletes(operation, calls[0], tuple(waiting), first, begun, facts))
        taken |= set(waiting)
    return cases


def startup(job: JobState) -> Startup | StartupFailed | None:
    """Return a start-up that did not complete, or None if a collective was issued or a rank failed by itself."""
    if job.any_calls():
        return None
    starts = {fact.rank: fact for fact in job.evidence.facts if fact.kind == KIND and fact.rank is not None}
    if starts and not any(end.by_itself for end in job.endings.values()):
        world = max(fact.fields["nranks"] for fact in starts.values())
        waiting = tuple(sorted(rank for rank, fact in starts.items() if fact.fields["state"] == "meets"))
        missing = tuple(r for r in range(world) if r not in starts or starts[r].fields["state"] == "started")
        if missing and (waiting or len(starts) == len(missing)):
            waited_s = max(lasted_s(starts[rank], "since_s") for rank in waiting or missing)
            still = (r for r in missing if r in starts and lasted_s(starts[r], "worked_s") >= STALL_S <= waited_s)
            stuck = tuple(rank for rank in still if at_start(starts[rank]).doing != "importing")
            if waiting or stuck == missing:
                return Startup(starts, waiting, missing, stuck, waited_s)
        if len(waiting) == world and any(fact.kind == VERDICT for fact in job.evidence.facts):
            return Startup(starts, waiting, (), (), max(lasted_s(starts[rank], "since_s") for rank in waiting))
    # Ranks that wait for the id of a communicator have completed the rendezvous: their group exists.
    met = {(fact.file, fact.line) for fact in job.evidence.facts if fact.kind == "nccl_id_timeout"}
    # Others may still come to a barrier of the store, unless more than its group has ranks did, or for a minute nobody.
    given_up = [fact for fact in not_yet_met(job.evidence) if fact.fields.get("count", 1) >= _LINES_STUCK]
    waits = (fact for fact in job.evidence.facts if {"waits", "joined"} <= fact.fields.keys() and fact not in given_up)
    hoped = [fact for fact in waits if fact.fields["joined"] <= fact.fields["size"]]
    of_start = (fact for fact in job.evidence.facts if fact.kind in _STARTUP or _is_of_rendezvous(fact))
    of_start = (fact for fact in of_start if "trained" not in fact.fields)
    decisive = tuple(fact for fact in of_start if (fact.file, fact.line) not in met and fact not in hoped)
    facts = decisive or tuple(_unmet(job))
    # Errors of the store or the network are what a failed start-up raises; any other traceback has a cause of its own.
    unrelated = [end for end in job.endings.values() if end.kind in {"raised", "oom", "killed"} and end.frames]
    if any(not any(part in end.type for part in ("Timeout", "Network", "Store")) for end in unrelated):
        return None
    return StartupFailed(facts) if facts else None


def not_yet_met(evidence: Evidence) -> list[LogFact]:
    """Return the last lines of ranks that wait for the store, or in its barrier for others, if nothing follows them."""
    waits = [fact for fact in evidence.facts if "waits" in fact.fields]
    rest = [(f.file, f.fields["steps"].last if f.kind == "steps" else f.line) for f in evidence.facts if f not in waits]
    return [fact for fact in waits if all(file != fact.file or line < fact.line for file, line in rest)]


def _is_of_rendezvous(fact: LogFact) -> bool:
    if fact.kind != "launcher_error" or any(at.function in _LATER for at in fact.fields["frames"]):
        return False
    return fact.fields["type"].startswith("Rendezvous") or _meets(fact.fields["frames"])


def _meets(frames: Iterable[Frame]) -> bool:
    """Return whether ranks or nodes were in a rendezvous when an exception was raised."""
    return any(_TEXT["meet"].search(f"{frame.file} {frame.function}") for frame in frames)


def _unmet(job: JobState) -> Iterator[LogFact]:
    """Yield the connections that failed during the rendezvous, from the exceptions of some ranks."""
    for error in job.evidence.errors:
        if _meets(error.frames) and is_victim(kind_of_exception(error.type, error.message, error.frames)):
            yield LogFact("unmet", error.rank, error.file, error.line, f"{error.type}: {error.message}", {})


def at_start(fact: LogFact) -> Activity:
    """Return what a rank did when `dtk watch` recorded its start."""
    return doing(Stacks(fact.rank, fact.file, (Thread("", fact.fields["frames"], main=True),)))


def lasted_s(fact: LogFact, since: str) -> float:
    """Return the seconds from `since` to the last sign of life, by the rank's own clock."""
    return max(0.0, float(fact.fields["alive_s"] - fact.fields[since]))


_MOST_RANKS = 64  # All pairs of rank and root are tried, which is quadratic in the size.


def other_roots(roots: Mapping[int, int], world: int) -> tuple[int, ...]:
    """Return the ranks that named another root than the others, from the roots that the waiting ranks named.

    If all ranks wait it is that of fewer, else see `deviating_rank`. Without an answer, the result is empty.
    """
    if len(roots) < world:
        named = deviating_rank(tuple(range(world)), tuple(roots), roots)
        return () if named is None else (named,)
    right, count = Counter(roots.values()).most_common(1)[0]
    return tuple(rank for rank, root in roots.items() if root != right) if 2 * count > world else ()


def deviating_rank(
    members: tuple[int, ...], waiting: tuple[int, ...], named: Mapping[int, int] | None = None
) -> int | None:
    """Return the rank that passed a root other than the first member, if this leaves exactly `waiting` stuck.

    The others are assumed to use the first member as root, which is by far the most common; `named` are roots that are
    known. Without a unique answer, the result is None.
    """
    size = len(members)
    if not 2 < size <= _MOST_RANKS:
        return None
    stuck = {members.index(rank) for rank in waiting if rank in members}
    known = {members.index(rank): members.index(root) for rank, root in (named or {}).items()}
    candidates = {
        members[deviating]
        for deviating in range(1, size)
        for root in range(1, size)
        if all((root if rank == deviating else 0) == at for rank, at in known.items())
        if stuck_ranks([root if rank == deviating else 0 for rank in range(size)]) == stuck
    }
    return candidates.pop() if len(candidates) == 1 else None


def stuck_ranks(roots: list[int]) -> set[int]:
    """Return the ranks that never return if rank i uses `roots[i]` as the root."""
    plans = [_steps(rank, root, len(roots)) for rank, root in enumerate(roots)]
    moved = True
    while moved:
        moved = False
        for rank, plan in enumerate(plans):
            for sends, peer in plan[:1]:
                if plans[peer][:1] == [(not sends, rank)]:
                    moved = bool(plan.pop(0) and plans[peer].pop(0))
    return {rank for rank, plan in enumerate(plans) if plan}


def _steps(rank: int, root: int, size: int) -> list[tuple[bool, int]]:
    """Return the steps of a rank in the tree as (whether it sends, peer)."""
    virtual = (rank - root) % size
    bits = (1 << level for level in range(max(1, (size - 1).bit_length())))
    peers = ((bit, virtual ^ bit) for bit in bits if virtual < 2 * bit)
    return [(not virtual & bit, (peer + root) % size) for bit, peer in peers if peer < size]


class SizesDiffer(Struct, frozen=True):
    """Ranks that passed different sizes to one collective, as printed by gloo or torch."""

    facts: tuple[LogFact, ...]
    divergence: Divergence | None
    """The calls that met; None if no ring shows them."""
    objects: tuple[Ending, ...] = ()
    """Ranks that got something else than an object in a collective of objects."""

    @property
    def victims(self) -> tuple[int, ...]:
        """The ranks that printed the error: those that met the wrong size, not those that passed it."""
        ranks = {fact.rank for fact in self.facts} | {end.rank for end in self.objects}
        return tuple(sorted(rank for rank in ranks if rank not in (None, UNNAMED)))


def sizes_differ(job: JobState) -> SizesDiffer | None:
    """Find the calls that met where a process ended because of different sizes; None if no log reports this."""
    facts = [fact for fact in job.evidence.facts if fact.kind == "gloo_mismatch"]
    objects = tuple(end for end in job.endings.values() if end.kind == "mismatch" and in_object_call(end.frames))
    if not facts:
        return SizesDiffer((), None, objects) if objects else None
    divergences = list(_divergences(job, {fact.rank for fact in facts}))
    return SizesDiffer(tuple(facts), divergences[0] if len(divergences) == 1 else None)


def _divergences(job: JobState, ended: set[int | None]) -> Iterator[Divergence]:
    """Yield ranks in a call that no other rank made before gloo ended a process, against peers in backward."""
    for operation in sorted(job.waits.waiting):
        if operation.key.recorder != SNAPSHOTS or operation.peer >= 0:
            continue
        ranks, peers, swallowed = _sides(job, operation, ended)
        if not peers or (swallowed and len(ranks) > len(peers)):
            continue
        outside = job.waits.calls[ranks[0], operation]
        inside = {rank: call for rank in peers if (call := _reduces(job, rank, operation, outside)) is not None}
        before = {at_line(call) for call in job.reading.calls(ranks[0], operation.key) if call.seq < outside.seq}
        # A call in the loop is not evidence: the rank may have left backward without a bucket.
        if len({call.site for call in inside.values()}) != 1 or at_line(outside) in before:
            continue
        first, reduction = min(inside.items())
        others = (first, *(peer for peer in peers if peer != first))  # A rank known to be in backward represents all.
        goes_on = len(others) >= len(ranks)
        vote = Vote(operation.key, operation.seq, (others, tuple(ranks)) if goes_on else (tuple(ranks), others))
        divergence = outside_backward(vote, reduction, outside, came_later=swallowed, majority_goes_on=goes_on)
        if divergence is not None:
            yield divergence


def _sides(job: JobState, operation: Operation, ended: set[int | None]) -> tuple[list[int], list[int], bool]:
    """Return ranks in the call, ranks elsewhere, and whether the latter reached it later, after ignoring the error."""
    waits = job.waits
    ranks, peers = waits.waiting[operation], list(waits.absent[operation])
    if not peers and ended & set(ranks):
        return [rank for rank in ranks if rank in ended], [rank for rank in ranks if rank not in ended], True
    lines = job.survey.groups[operation.key].lines
    busy = any(rank in lines and lines[rank].pending is not None for rank in peers)
    return ranks, [] if busy or waits.complete[operation] else peers, False


def _reduces(job: JobState, rank: int, operation: Operation, outside: Call) -> Call | None:
    """Return the last call in backward, missing from the ring, of a rank that cannot be `outside`.

    A snapshot has no frames: they are those of another rank's call at the same position.
    """
    last = None
    for key, table in sorted(job.survey.groups.items()):
        if key.recorder != SNAPSHOTS and (key.name, key.desc) == (operation.key.name, operation.key.desc):
            last = table.lines[rank].last if rank in table.lines else last
            if last is not None and agree(last.wire, outside.wire):
                calls = reversed(job.reading.calls(rank, key))
                last = next((call for call in calls if not agree(call.wire, outside.wire)), None)
            if last is not None and last.site is None:
                same = (call for peer in table.lines for call in job.reading.calls(peer, key) if call.seq == last.seq)
                last = next((call for call in same if call.site is not None and agree(call.wire, last.wire)), last)
    return last if last is not None and last.site is not None and in_backward(last) else None
