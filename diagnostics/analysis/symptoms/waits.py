"""The calls in which ranks wait, from lines of watchdogs and of gloo's timeouts, and how far other ranks are."""

import time
from collections.abc import Sequence

from msgspec.structs import replace

from diagnostics.analysis.histories.watchdog_lines import UNNAMED, GroupLog, enqueued_behind, members_of, stamp_s
from diagnostics.analysis.symptoms.lines import KINDS, says
from diagnostics.analysis.symptoms.places import by_call, within
from diagnostics.analysis.symptoms.state import Progress, Waiting
from diagnostics.contract.formatting import UNNAMED as NOBODY
from diagnostics.evidence.calls import operation
from diagnostics.evidence.endings import Ending
from diagnostics.evidence.model import Evidence, LogFact


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
    made = []
    for (seq, op, numel), ranks in sorted(alike.items(), key=lambda item: (item[0][:2], item[0][2] or 0, item[1])):
        progress = [group.counters[rank] for rank in sorted(ranks) if rank in group.counters]
        timed = next((facts[rank] for rank in sorted(ranks) if rank in group.waits), facts[ranks[0]])
        completed = progress[0].completed if progress else None
        enqueued = max((counters.enqueued for counters in progress), default=None)
        call = (tuple(sorted(ranks)), op, seq, numel, label, members)
        behind = tuple(rank for rank in sorted(ranks) if (group.name, rank) in later)
        made.append(Waiting(*call, completed, enqueued, *_since(timed), behind=behind))
    return made


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
            one, ranks = named[same[0]], tuple(sorted({*wait.ranks, *named[same[0]].ranks}))
            known = {"waited_s": wait.waited_s, "timeout_s": wait.timeout_s, "since": wait.since} if not one.op else {}
            members, numel = one.members or wait.members, wait.numel
            named[same[0]] = replace(one, ranks=ranks, op=wait.op, numel=numel, members=members, **known)
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
    places = within(victims)
    at_barrier = left_waiting(evidence)  # Each repeats a timeout of gloo.
    timeouts = [fact for fact in evidence.facts if fact.kind == "gloo_timeout" and not at_barrier]
    if timeouts and places.keys() >= {NOBODY if fact.rank is None else fact.rank for fact in timeouts}:
        since = (None, None, "", evidence.world_size, None, None, *_since(timeouts[0]))
        return [Waiting(ranks, op, *since, site) for (op, site), ranks in by_call(places).items()]
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
