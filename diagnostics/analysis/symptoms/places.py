"""The calls in which observations, stacks or exceptions show ranks, and what the other ranks do."""

from collections.abc import Mapping, Sequence

from diagnostics.analysis.observations import observations
from diagnostics.analysis.stall.from_observations import places
from diagnostics.analysis.stall.job_state import STALL_S
from diagnostics.analysis.stall.stack_evidence import collective_of
from diagnostics.analysis.symptoms.lines import says
from diagnostics.analysis.symptoms.state import Waiting
from diagnostics.contract.formatting import UNNAMED as NOBODY, Phrase, file_name
from diagnostics.evidence.endings import Ending
from diagnostics.evidence.model import Evidence, Frame, Stacks
from diagnostics.evidence.stacks.activity import doing
from diagnostics.evidence.stacks.dumps import main_thread, target


def observed(
    evidence: Evidence, victims: list[Ending], held_s: float
) -> tuple[list[Waiting], tuple[tuple[tuple[int, ...], Phrase], ...]]:
    """Return the calls in which observations, single stacks or exceptions show ranks, and what the other ranks do."""
    dumps = {one.rank: one for one in evidence.stacks if one.rank is not None}
    is_named = bool(dumps and evidence.facts)
    spied = {one.pid: one for one in evidence.stacks if one.pid is not None and not is_named}
    nameless = enumerate((pid for pid, one in spied.items() if one.rank is None), 1)
    pids = {NOBODY - number: pid for number, pid in nameless}
    dumps |= {rank: spied[pid] for rank, pid in pids.items()}
    observed = {rank: seen for rank, seen in observations(evidence).items() if not seen.exited}
    inside, activities = places(observed, dumps)
    blocked_s = {rank: observed[rank].blocked_s for rank in inside if observed[rank].blocked_s >= STALL_S}
    sites = {rank: (inside[rank].op, inside[rank].site) for rank in blocked_s}
    mains = {rank: main_thread(dump) for rank, dump in dumps.items() if not observed}
    frames = [(rank, main.frames) for rank, main in mains.items() if main is not None]
    for rank, path in [*frames, *((end.rank, end.frames) for end in victims if end.rank != NOBODY)]:
        sites |= {rank: place} if (place := collective_of(path)) is not None else {}
    if len({*sites.values()}) < 2 and not (observed or held_s or len(spied) > 1):
        return [], ()
    idle = (observed[rank].stopped or observed[rank].idle_s >= STALL_S for rank in activities)
    is_still = not inside and all(idle) and not any(at.doing == "importing" for at in activities.values())
    activities |= {rank: doing(dump) for rank, dump in dumps.items() if spied and rank not in sites}
    does: dict[Phrase, list[int]] = {}
    for rank, at in activities.items():
        row = f"does{'_at' if at.frame else ''}{'_process' if rank in pids else ''}"
        does.setdefault(says(row, words=at.words, at=at.frame, pid=pids.get(rank)), []).append(rank)
    waits = []
    for (op, site), ranks in by_call(sites).items():
        processes = tuple(sorted(pids[rank] for rank in ranks if rank in pids))
        waited_s = min(blocked_s.get(rank, held_s) for rank in ranks) or None
        waits.append(Waiting(ranks, op, waited_s=waited_s, site=site, processes=processes))
    return waits, tuple((tuple(ranks), text) for text, ranks in does.items()) if waits or is_still else ()


def is_threaded(dump: Stacks) -> bool:
    """Return whether two threads communicate, or one does and another thread that the program started runs its code."""
    code = [at and (at.file, at.function) for at in map(target, dump.threads)]
    own = [number for number, one in enumerate(dump.threads) if one.main or code[number]]
    inside = [number for number in own if collective_of(dump.threads[number].frames, whole=True)]
    return len(inside) > 1 or any(code[number] and code.count(code[number]) > 1 for number in inside)


def within(victims: Sequence[Ending]) -> dict[int, tuple[str, Frame]]:
    """Return the call, an operation and a line of the user, in which each rank gave up."""
    return {end.rank: place for end in victims if (place := collective_of(end.frames)) is not None}


def by_call(places: Mapping[int, tuple[str, Frame | None]]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the ranks in each call, an operation at a line, without those that no line names."""
    ranks_at: dict[tuple[str, str], tuple[int, ...]] = {}
    for rank, (op, at) in sorted(places.items()):
        call = op, f"{file_name(at.file)}:{at.line}" if at else ""
        ranks_at[call] = ranks_at.get(call, ()) + ((rank,) if rank != NOBODY else ())
    return ranks_at
