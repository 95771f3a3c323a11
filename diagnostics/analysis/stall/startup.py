"""The start-up of a job: which ranks met, which others did not arrive, or what failed before the first collective."""

from collections.abc import Iterable

from msgspec import Struct

from diagnostics.analysis.observations import observations
from diagnostics.analysis.stall.job_state import HANG_FACTS, STALL_S, JobState
from diagnostics.analysis.stall.stack_evidence import CREATES, collective_of
from diagnostics.contract.files import patterns_beside, table_beside
from diagnostics.evidence.endings import is_victim, kind_of_exception
from diagnostics.evidence.model import Evidence, Frame, LogFact, Stacks, Thread
from diagnostics.evidence.readers.log import last_progress
from diagnostics.evidence.readers.start import KIND
from diagnostics.evidence.readers.watch import VERDICT
from diagnostics.evidence.stacks.activity import Activity, doing
from diagnostics.evidence.stacks.dumps import main_thread

_STARTUP, _PAST, _PAST_ITSELF = (frozenset[str](table_beside(__file__)[name]) for name in ("kinds", "past", "itself"))
_TEXT = patterns_beside(__file__, "texts")
"""The table documents what each pattern matches."""
_AFTER = HANG_FACTS | {"nccl_init"}  # Lines of collectives, or of the set-up for the first one.
_LINES_STUCK = 6  # torch writes one every 10 s.
_LATER = frozenset({"num_nodes_waiting", "_exit_barrier"})
"""Functions of torchrun that query the store while its ranks run, and after they have exited."""


class Startup(Struct, frozen=True):
    """Ranks that wait for others in init_process_group, or all make no progress before it: records of `dtk watch`."""

    starts: dict[int, LogFact]
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    """Ranks that did not arrive; those without an entry in `starts` left no record. Empty if all wait."""
    stuck: tuple[int, ...]
    """Missing ranks that make no progress. A rank that computes or reads before it arrives is late, not stuck."""
    waited_s: float


class Meeting(Struct, frozen=True):
    """Ranks whose stacks all show them in one function that creates a group, where they wait for others."""

    op: str
    sites: dict[int, Frame]
    files: dict[int, str]
    """Rank -> the stack dump that shows it."""
    missing: tuple[int, ...]
    """Ranks without a stack, if the number of ranks is known."""


class StartupFailed(Struct, frozen=True):
    """A start-up in which the store or the rendezvous failed and no collective was issued."""

    facts: tuple[LogFact, ...]


def startup(job: JobState) -> Startup | StartupFailed | Meeting | None:
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
    errors = [fact for fact in job.evidence.facts if fact.kind == "launcher_error"]
    met_in = [f for f in errors if f.fields["type"].startswith("Rendezvous") or _in_rendezvous(f.fields["frames"])]
    of_start = (fact for fact in job.evidence.facts if fact.kind in _STARTUP or fact in met_in)
    # The exception of torchrun's monitor, whose last line tells of the store as one of the start does.
    later = {(fact.file, fact.line) for fact in errors if any(at.function in _LATER for at in fact.fields["frames"])}
    # A store that a rank lost had been reached before.
    lost = [(f.file, f.line) for f in job.evidence.facts if f.kind in {"lost_peer", "store_closed"}]
    timeouts = [(f.file, f.line) for f in job.evidence.facts if f.kind == "store_timeout"]
    later |= {(file, line) for file, line in timeouts for other, at in lost if other == file and at < line}
    of_start = (f for f in of_start if "trained" not in f.fields and (f.file, f.line) not in later)
    decisive = tuple(fact for fact in of_start if (fact.file, fact.line) not in met and fact not in hoped)
    raised = (error for error in job.evidence.errors if _in_rendezvous(error.frames))
    unmet = [error for error in raised if is_victim(kind_of_exception(error.type, error.message, error.frames))]
    texts = [(error, f"{error.type}: {error.message}") for error in unmet]
    facts = decisive or tuple(LogFact("unmet", e.rank, e.file, e.line, text, {}) for e, text in texts)
    # Errors of the store or the network are what a failed start-up raises; any other traceback has a cause of its own.
    unrelated = [end for end in job.endings.values() if end.kind in {"raised", "oom", "killed"} and end.frames]
    if any(not any(part in end.type for part in ("Timeout", "Network", "Store")) for end in unrelated):
        return None
    return StartupFailed(facts) if facts else _meeting(job)


def _meeting(job: JobState) -> Meeting | None:
    """Return where ranks meet by their stacks, or None if one is elsewhere or the job had taken a step before."""
    dumps = {dump.rank: dump for dump in job.evidence.stacks if dump.rank is not None}
    is_over = last_progress(job.evidence) or any(fact.kind in _AFTER for fact in job.evidence.facts)
    threads = {rank: main_thread(dump) for rank, dump in dumps.items()}
    places = {rank: collective_of(main.frames, whole=True) for rank, main in threads.items() if main is not None}
    sites = {rank: place[1] for rank, place in sorted(places.items()) if place is not None}
    op, *others = {place[0] for place in places.values() if place is not None} or {""}
    is_apart = others or not op.startswith(CREATES) or len(sites) < len(dumps)
    failed = any(end.exited_early for end in job.endings.values())
    if is_apart or is_over or failed or observations(job.evidence):
        return None
    missing = tuple(rank for rank in range(job.evidence.world_size or 0) if rank not in sites)
    if not missing and job.evidence.world_size and op != "init_process_group":
        return None  # They may make different groups, or those of one line in another order.
    return Meeting(op, sites, {rank: dumps[rank].file for rank in sites}, missing)


def not_yet_met(evidence: Evidence) -> list[LogFact]:
    """Return the last lines of ranks that wait for the store, or in its barrier for others, unless a later line proves
    that they went on. The kernel, launchers and ranks that have not come yet write lines too.
    """
    last: dict[tuple[str, int | None], int] = {}
    for fact in (fact for fact in evidence.facts if fact.kind in _PAST | _PAST_ITSELF):
        writer = fact.file, fact.rank if fact.kind in _PAST_ITSELF else None
        last[writer] = max(last.get(writer, 0), fact.fields["steps"].last if fact.kind == "steps" else fact.line)
    waits = (fact for fact in evidence.facts if "waits" in fact.fields)
    return [f for f in waits if f.line > max(last.get((f.file, rank), 0) for rank in (None, f.rank))]


def _in_rendezvous(frames: Iterable[Frame]) -> bool:
    """Return whether ranks or nodes were in a rendezvous when an exception was raised."""
    return any(_TEXT["meet"].search(f"{frame.file} {frame.function}") for frame in frames)


def at_start(fact: LogFact) -> Activity:
    """Return what a rank did when `dtk watch` recorded its start."""
    return doing(Stacks(fact.rank, fact.file, (Thread("", fact.fields["frames"], main=True),)))


def lasted_s(fact: LogFact, since: str) -> float:
    """Return the seconds from `since` to the last sign of life, by the rank's own clock."""
    return max(0.0, float(fact.fields["alive_s"] - fact.fields[since]))
