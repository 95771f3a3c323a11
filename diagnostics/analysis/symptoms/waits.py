"""The calls in which ranks wait, from lines of watchdogs and of gloo's timeouts, or else from observations, stacks or
exceptions, and what the other ranks do.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from diagnostics.analysis.histories.watchdog_lines import UNNAMED, GroupLog, enqueued_behind, members_of, stamp_s
from diagnostics.analysis.observations import observations
from diagnostics.analysis.stall.from_observations import places
from diagnostics.analysis.stall.job_state import SIZES, STALL_S
from diagnostics.analysis.stall.size_mismatch import minority_sizes
from diagnostics.analysis.stall.stack_evidence import collective_of
from diagnostics.analysis.symptoms.state import KINDS, Progress, Waiting, says
from diagnostics.contract.files import patterns_beside
from diagnostics.contract.formatting import UNNAMED as NOBODY, Phrase, file_name
from diagnostics.evidence.calls import operation
from diagnostics.evidence.endings import Ending, of_error
from diagnostics.evidence.model import CLAUSE, Evidence, Frame, LogFact, Stacks, shortened
from diagnostics.evidence.stacks.activity import doing
from diagnostics.evidence.stacks.dumps import main_thread, target

_OF_MODEL = patterns_beside(__file__)["of_model"]


def left_waiting(evidence: Evidence) -> list[LogFact]:
    """Return the lines of ranks that rank 0 left waiting in a monitored barrier, unless it is gone."""
    kinds = {fact.kind for fact in evidence.facts}
    is_gone = kinds & KINDS["closed"] and "gloo_timeout" not in kinds
    return [fact for fact in evidence.facts if fact.kind == "reached_barrier" and not is_gone]


def all_waits(
    evidence: Evidence, groups: Sequence[GroupLog], victims: list[Ending], seen: list[Waiting]
) -> list[Waiting]:
    """Return the calls in which ranks wait, from lines of watchdogs, and from exceptions or else what was `seen`.

    A single rank that may have come too late is no victim. Of several such ranks some waited too: their peer that timed
    out first closed its connections.
    """
    later = enqueued_behind(groups)
    placed = _named([wait for group in groups for wait in _waits(evidence, group, later)])
    unplaced = _without_position(evidence, victims)
    return placed + (unplaced if any(wait.site for wait in unplaced) else seen or unplaced)


def _waits(evidence: Evidence, group: GroupLog, later: set[tuple[str, int]]) -> list[Waiting]:
    alike: dict[tuple[int, str, int | None], list[int]] = {}
    facts: dict[int, LogFact] = {}
    for rank, wait in group.waits.items():
        alike.setdefault((wait.seq, wait.name, wait.numel if wait.even else None), []).append(rank)
        facts[rank] = wait.fact
    for rank, counters in group.counters.items():
        if rank not in group.waits and counters.work is not None:
            # A status line names the position only: the call is that of the other ranks there, if they agree.
            at_position = [key for key in alike if key[0] == counters.work]
            alike.setdefault(at_position[0] if len(at_position) == 1 else (counters.work, "", None), []).append(rank)
            facts[rank] = counters.fact
    label = "" if group.mixed or group.name == UNNAMED else group.label
    sizes = filter(None, map(members_of, facts.values()))
    members = next(sizes, evidence.world_size if group.default else None)
    waits = []
    for (seq, op, numel), ranks in sorted(alike.items(), key=lambda item: (item[0][:2], item[0][2] or 0, item[1])):
        progress = [group.counters[rank] for rank in sorted(ranks) if rank in group.counters]
        timed = next((facts[rank] for rank in sorted(ranks) if rank in group.waits), facts[ranks[0]])
        completed = progress[0].completed if progress else None
        enqueued = max((counters.enqueued for counters in progress), default=None)
        call = (tuple(sorted(ranks)), op, seq, numel, label, members)
        behind = tuple(rank for rank in sorted(ranks) if (group.name, rank) in later)
        waits.append(Waiting(*call, completed, enqueued, *_since(timed), behind=behind))
    return waits


def _named(waits: list[Waiting]) -> list[Waiting]:
    """Add ranks whose lines name no group to those that wait in the same call, if a single group has such a call."""
    named = [wait for wait in waits if wait.group]
    at: dict[tuple[int | None, str, int | None], list[int]] = {}
    for number, wait in enumerate(named):
        at.setdefault((wait.seq, wait.op, wait.numel), []).append(number)
    for wait in (wait for wait in waits if not wait.group):
        same = at.setdefault((wait.seq, wait.op, wait.numel), [])
        same = same or at.get((wait.seq, "", None), [])  # A status names the position alone.
        if len(same) == 1:
            place = named[same[0]]
            ranks, members = tuple(sorted({*wait.ranks, *place.ranks})), place.members or wait.members
            times = place if place.op else wait
            since = {"waited_s": times.waited_s, "timeout_s": times.timeout_s, "since": times.since}
            named[same[0]] = replace(place, ranks=ranks, op=wait.op, numel=wait.numel, members=members, **since)
        else:
            at[wait.seq, wait.op, wait.numel].append(len(named))
            named.append(wait)
    return named


def others(group: GroupLog) -> list[Progress]:
    """Return how far the ranks are that do not wait in a group, by their watchdogs' counters."""
    alike: dict[tuple[int, int], list[int]] = {}
    for rank, counters in group.counters.items():
        if rank not in group.waits and counters.work is None:
            alike.setdefault((counters.completed, counters.enqueued), []).append(rank)
    return [Progress(tuple(sorted(ranks)), group.label, *key) for key, ranks in sorted(alike.items())]


def _without_position(evidence: Evidence, victims: list[Ending]) -> list[Waiting]:
    """Return the waits whose lines give no position or no rank: those of torch 1.x and of gloo, and single lines."""
    alike: dict[tuple[str, int | None, int | None], list[LogFact]] = {}
    sites = within(victims)
    at_barrier = left_waiting(evidence)  # Each repeats a timeout of gloo.
    timeouts = [fact for fact in evidence.facts if fact.kind == "gloo_timeout" and not at_barrier]
    if timeouts and sites.keys() >= {NOBODY if fact.rank is None else fact.rank for fact in timeouts}:
        since = (None, None, "", evidence.world_size, None, None, *_since(timeouts[0]))
        return [Waiting(ranks, op, *since, site) for (op, site), ranks in by_call(sites).items()]
    reported = [fact for fact in evidence.facts if fact.kind == "watchdog_timeout"] + at_barrier
    placed = {fact.rank: fact.fields["seq"] for fact in reported if fact.rank is not None and "seq" in fact.fields}
    for fact in reported:
        seq, numel = fact.fields.get("seq"), fact.fields.get("numel_in")
        if fact.rank not in placed and (seq is None or (fact.rank is None and seq not in placed.values())):
            alike.setdefault((operation(str(fact.fields.get("op", ""))), seq, numel), []).append(fact)
    for fact in timeouts:
        alike.setdefault((str(says("transfer", direction=fact.fields.get("direction"))), None, None), []).append(fact)
    ranks = [tuple(sorted({fact.rank for fact in facts if fact.rank is not None})) for facts in alike.values()]
    return [
        Waiting(who, *call, "", members_of(facts[0]), None, None, *_since(facts[0]))
        for who, (call, facts) in zip(ranks, alike.items(), strict=True)
    ]


def _since(fact: LogFact) -> tuple[float | None, float | None, str]:
    """Return how long a call had waited (s), its timeout (s), and when the wait began (`HH:MM:SS`, or empty)."""
    timeout_ms = fact.fields.get("timeout_ms")
    waited_ms = fact.fields.get("ran_ms", timeout_ms)
    waited_s, timeout_s = (value / 1000 if isinstance(value, int) else None for value in (waited_ms, timeout_ms))
    at_s = stamp_s(fact)
    since = "" if at_s is None or waited_s is None else time.strftime("%H:%M:%S", time.gmtime(at_s - waited_s))
    return waited_s, timeout_s, since


def observed(
    evidence: Evidence, victims: list[Ending], held_s: float
) -> tuple[list[Waiting], tuple[tuple[tuple[int, ...], Phrase], ...]]:
    """Return the calls in which observations, single stacks or exceptions show ranks, and what the other ranks do."""
    dumps = {dump.rank: dump for dump in evidence.stacks if dump.rank is not None}
    is_named = bool(dumps and evidence.facts)
    spied = {dump.pid: dump for dump in evidence.stacks if dump.pid is not None and not is_named}
    nameless = enumerate((pid for pid, dump in spied.items() if dump.rank is None), 1)
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
    if len({*sites.values()}) < 2 and not (observed or held_s or len(evidence.stacks) > 1):
        return [], ()
    idle = (observed[rank].stopped or observed[rank].idle_s >= STALL_S for rank in activities)
    is_still = not inside and all(idle) and not any(at.doing == "importing" for at in activities.values())
    activities |= {rank: doing(dump) for rank, dump in dumps.items() if len(evidence.stacks) > 1 and rank not in sites}
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
    own = [number for number, thread in enumerate(dump.threads) if thread.main or code[number]]
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


def met_sizes(evidence: Evidence, lost: Sequence[Ending]) -> dict[str, Any]:
    """Return the fields about a process that gloo ended as two sizes do not match, and where its peers lost it."""
    facts = [fact for fact in evidence.facts if fact.kind == SIZES]
    if not facts:
        return {}
    places, met = within(lost), {fact.rank for fact in facts}
    own = within([of_error(e, e.rank) for e in evidence.errors if e.rank is not None and e.rank in met])
    paths = [end.frames for end in lost if end.rank in places]
    of_model = bool(paths) and all(any(_OF_MODEL.search(f"{at.file} {at.function}") for at in path) for path in paths)
    return {
        "sizes": shortened(facts[0].text.strip(), CLAUSE),
        "minority_sizes": minority_sizes(facts, evidence.world_size or 0),
        "peer_calls": tuple(Waiting(ranks, op, site=site) for (op, site), ranks in by_call(places).items()),
        "of_model": of_model,
        "statements": len({*places.values(), *own.values()}) if own and places else 0,
    }
