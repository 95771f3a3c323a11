"""Collectives that every member issued and that do not complete, and a start-up that never completed."""

from collections.abc import Collection
from dataclasses import dataclass

from diagnostics.analysis.job_state import STALL_S, JobState
from diagnostics.analysis.wait_graph.broadcast_tree import deviating_rank
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.evidence.calls import ROOTED, Call
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.readers.start import KIND

_TIMEOUTS = {"rendezvous_timeout", "store_timeout", "store_key_timeout"}
_STARTUP = _TIMEOUTS | {"missing_variable", "interface_missing", "port_in_use"}
_RENDEZVOUS = frozenset({"next_rendezvous", "_rendezvous", "_initialize_workers"})
"""Functions of torch's elastic agent in which nodes meet."""
_TRANSPORT = {"nccl_ib_error", "nccl_ib_async", "nccl_connect", "nccl_socket_error"}


@dataclass(frozen=True, slots=True)
class RootDiffers:
    """A rooted operation that everybody issued and only some completed: the ranks do not agree on the root."""

    operation: Operation
    calls: dict[int, Call]
    """Of each rank that hangs in it."""
    complete: tuple[int, ...]
    members: tuple[int, ...]
    deviating: int | None
    """The rank that names another root, where gloo's broadcast tree shows it."""

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that hang in it."""
        return tuple(self.calls)


@dataclass(frozen=True, slots=True)
class NeverCompletes:
    """A collective that all members are in and that completes on none."""

    operation: Operation
    call: Call
    ranks: tuple[int, ...]
    first: bool
    """Whether nothing completed in the group before."""
    transport: tuple[LogFact, ...]
    """Errors of the transport in the logs."""


@dataclass(frozen=True, slots=True)
class Startup:
    """Ranks that wait in init_process_group for others, by what `dtk watch` records of them meanwhile."""

    starts: dict[int, LogFact]
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    """Ranks that did not come; those without an entry in `starts` left nothing."""
    stuck: tuple[int, ...]
    """Missing ranks that do not move. A rank that computes or reads on its way is late, not stuck."""
    waited_s: float


@dataclass(frozen=True, slots=True)
class StartupFailed:
    """The store or the rendezvous failed, and no collective was issued."""

    facts: tuple[LogFact, ...]


def roots_differ(job: JobState, explained: Collection[int]) -> list[RootDiffers]:
    """Rooted operations that completed on some members only, in dumps that do not record the root."""
    cases, taken = [], set(explained)
    for operation, waiting in sorted(job.waits.waiting.items()):
        calls = {rank: job.waits.calls[rank, operation] for rank in waiting}
        wire, complete = calls[waiting[0]].wire, tuple(job.waits.complete[operation])
        if wire.op not in ROOTED or not complete or job.waits.absent[operation] or set(waiting) & taken:
            continue
        if operation.key.recorder == "gloo" and wire.root is None:
            members = job.survey.members(operation.key)
            deviating = deviating_rank(members, tuple(waiting)) if wire.op == "broadcast" else None
            cases.append(RootDiffers(operation, calls, complete, members, deviating))
            taken |= {*waiting, *complete} | job.waits.reaching(waiting)
    return cases


def never_complete(job: JobState, explained: Collection[int]) -> list[NeverCompletes]:
    """Return the collectives that all members have entered, in a stalled job in which no rank is missing."""
    if not job.stands_still() or job.waits.waited_for() or job.peer_vanished():
        return []
    facts = tuple(fact for fact in job.evidence.facts if fact.kind in _TRANSPORT)
    cases, taken = [], set(explained)
    for operation, waiting in sorted(job.waits.waiting.items()):
        calls = [job.waits.calls[rank, operation] for rank in waiting]
        if operation.peer >= 0 or job.waits.complete[operation] or len(waiting) < 2 or set(waiting) & taken:
            continue
        if len(waiting) < len(job.survey.members(operation.key)) or not all(call.completion_known for call in calls):
            continue
        lines = job.survey.groups[operation.key].lines
        first = all(lines[rank].done <= 0 for rank in waiting)
        cases.append(NeverCompletes(operation, calls[0], tuple(waiting), first, facts))
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
        if waiting and missing:
            waited_s = max(lasted_s(starts[rank], "since_s") for rank in waiting)
            stuck = tuple(r for r in missing if r in starts and lasted_s(starts[r], "worked_s") >= STALL_S)
            return Startup(starts, waiting, missing, stuck if waited_s >= STALL_S else (), waited_s)
    facts = tuple(fact for fact in job.evidence.facts if fact.kind in _STARTUP or _is_of_rendezvous(fact))
    # Errors of the store or the network are what a failed start-up raises; any other traceback has a cause of its own.
    unrelated = [end for end in job.endings.values() if end.kind in {"raised", "oom", "killed"} and end.frames]
    if any(not any(part in end.what for part in ("Timeout", "Network", "Store")) for end in unrelated):
        return None
    return StartupFailed(facts) if facts else None


def _is_of_rendezvous(fact: LogFact) -> bool:
    """Whether the launcher failed before it had started any rank."""
    return fact.kind == "launcher_error" and any(
        frame.function in _RENDEZVOUS and "torch/distributed/elastic/" in frame.file for frame in fact.fields["frames"]
    )


def lasted_s(fact: LogFact, since: str) -> float:
    """Seconds from `since` to the last sign of life, by the rank's own clock."""
    return max(0.0, float(fact.fields["alive_s"] - fact.fields[since]))
