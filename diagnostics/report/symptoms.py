"""Text on a job that hangs according to its log, and on the likely causes."""

import re
from collections.abc import Iterator

from diagnostics.analysis.symptoms.state import TRANSPORT, Symptoms, Waiting
from diagnostics.contract import formatting
from diagnostics.contract.files import table_beside
from diagnostics.evidence.model import CLAUSE, shortened
from diagnostics.evidence.readers import process, ras
from diagnostics.report.document import Field
from diagnostics.report.model import Report
from diagnostics.report.wording import texts_beside

_TABLE, _said = table_beside(__file__), texts_beside(__file__)
_SHOWN = 3  # Maximum number of calls, and of groups of ranks, on the first screen.


def headline(symptoms: Symptoms) -> str:
    """Return which ranks wait in which call, in one clause."""
    if symptoms.waits and not symptoms.absent:
        shown_waits = symptoms.waits[: 2 if symptoms.by_call.sides[1:] else 1]
        waits = [_said("waits", who=_who(wait), ranks=wait.ranks or (0,), call=_call(wait)) for wait in shown_waits]
        return _said("unconfirmed", waits=waits)
    kinds, absent, transport = symptoms.kinds, symptoms.absent, symptoms.kinds & TRANSPORT
    other = symptoms.others[0] if symptoms.others and "watchdog_status" in kinds else None
    shown: dict[str, tuple[object, tuple[int, ...]]] = {
        "still": (symptoms.outside and symptoms.outside[0][1], symptoms.outside[0][0] if symptoms.outside else ()),
        "worker_died": (symptoms.worker_died, ()),
        "failure": (symptoms.failure, symptoms.failed),
        "minority_sizes": (symptoms.minority_sizes and symptoms.sizes, symptoms.minority_sizes),
        "peer_calls": (symptoms.peer_calls and symptoms.aborted and symptoms.sizes, symptoms.aborted),
        "sizes": (symptoms.sizes, symptoms.aborted),
        "differ": (symptoms.differ, ()),
        "numbered": ("collective_mismatch_text" in kinds, ()),
        "aborted": (symptoms.aborted, symptoms.aborted),
        "not_in_call": (absent and "missing_ranks" in kinds, absent),
        "not_set_up": (absent and "nccl_id_timeout" in kinds, absent),
        "fewer_launched": (absent and ras.COUNTS in kinds, absent),
        "not_at_barrier": (absent, absent),
        "unanswered": (symptoms.unanswered, symptoms.unanswered),
        "process_gone": (ras.LOST in kinds, ()),
        "lost": (shortened(symptoms.lost, CLAUSE), symptoms.lost_peer),
        "timed_out": (shortened(symptoms.timed_out, CLAUSE), ()),
        "failed_silently": (symptoms.failed_silently, symptoms.failed_silently),
        "stuck": (symptoms.stuck_s, symptoms.stuck),
        "heartbeat": ("monitor_stuck" in kinds, symptoms.stuck),
        "silence": (symptoms.silence, ()),
        "open": (other and other.enqueued - other.completed, other.ranks if other else ()),
        "none_open": (other, other.ranks if other else ()),
        "warning": (not transport and symptoms.warning, ()),
        "ended_by_watchdog": ("watchdog_abort" in kinds, ()),
        "silent_process": (symptoms.has_unnamed_exit and not transport, ()),
        "transport": (transport, ()),
        "unknown": (True, ()),
    }
    name = next(name for name, (is_shown, _) in shown.items() if is_shown)
    it, ranks = shown[name]
    return formatting.filled(_TABLE["headlines"][name][0 if ranks else -1], {"it": it, "ranks": ranks})


def rows(report: Report) -> Iterator[Field]:
    """Yield the waiting ranks with call and time, the position of the others, likely causes, and how to confirm one."""
    symptoms = report.waiting
    yield from positions(symptoms) if symptoms is not None else _recorded(report)
    last: tuple[object, ...] = ()
    for suspicion in report.suspicions[:_SHOWN]:
        signs = suspicion.speaks_for
        ranks = f", {formatting.ranks_text(suspicion.ranks)}" if suspicion.ranks else ""
        named = f"{suspicion.probability:.0%} {report.title(suspicion.cause)} [{suspicion.cause}]{ranks}"
        against = _said("against", reasons=suspicion.speaks_against) if suspicion.speaks_against else ""
        yield Field("maybe", f"{named}: {_said('same') if signs == last else '; '.join(signs)}{against}", "warn")
        last = signs
    # That memory ran out may be all that the cause says.
    open_ones = report.suspicions[:1] if not report.root_causes or report.outcome == "oom" else ()
    if any(item.decide for item in open_ones) or (symptoms is not None and (symptoms.waits or not symptoms.outside)):
        yield Field("needed", needed(report, symptoms))


def _recorded(report: Report) -> Iterator[Field]:
    """Yield the calls in which ranks wait by their dumps, if these confirm no cause."""
    hang = report.measures.get("hang")
    rows = hang.get("waits", []) if isinstance(hang, dict) and not report.root_causes else []
    for row in rows[:_SHOWN]:
        yield Field("waits", _waits(Waiting(**{**row, "ranks": tuple(row["ranks"])})))
    if len(rows) > _SHOWN:
        yield Field("", _said("more_calls", count=len(rows) - _SHOWN))


def positions(symptoms: Symptoms) -> Iterator[Field]:
    """Yield the waiting ranks with call and time, and the position of the others."""
    waiting = {rank for wait in symptoms.waits for rank in wait.ranks}
    for wait in symptoms.waits[:_SHOWN]:
        yield Field("waits", _waits(wait))
    if len(symptoms.waits) > _SHOWN:
        yield Field("", _said("more_calls", count=len(symptoms.waits) - _SHOWN))
    if symptoms.silence is not None:
        yield Field("silent", _said("silence", it=symptoms.silence))
    for wait in symptoms.peer_calls[:_SHOWN]:
        yield Field("others", _said("lost_a_peer", who=_who(wait), call=_call(wait)))
    for ranks, words in symptoms.outside[:_SHOWN]:
        yield Field("others", f"{formatting.sentence(formatting.ranks_spoken(ranks))}: {words}")
    for rest in symptoms.others[:_SHOWN]:
        yield Field("others", _said("completed" if rest.completed == rest.enqueued else "enqueued", rest=rest))
    mentioned = waiting.union(
        symptoms.silent, *(rest.ranks for rest in symptoms.others), *(ranks for ranks, _ in symptoms.outside)
    )
    members = symptoms.waits[0].members if symptoms.waits else 0
    for ranks, step, at in symptoms.printed[:_SHOWN]:
        yield Field("silent", _said("last_step", ranks=ranks, step=step, at=f" at {at}" if at else ""))
    mute = sorted({*symptoms.silent}.difference(*(ranks for ranks, *_ in symptoms.printed)))
    if mute and process.KIND not in symptoms.kinds:
        yield Field("silent", _said("no_line", ranks=mute))
    elif members and members > len(waiting) + len(symptoms.silent):
        yield Field("silent", _said("of_group", count=members - len(waiting)))
    elif waiting and not (members or symptoms.absent) and (missing := max(waiting) + 1 - len(mentioned)) > 0:
        yield Field("silent", _said("of_job", count=missing))


def needed(report: Report, symptoms: Symptoms | None) -> str:
    """Return what the user can run or collect to confirm a cause."""
    if report.suspicions and (decide := report.suspicions[0].decide):
        return decide
    if symptoms is not None and not symptoms.sizes and (silent := symptoms.aborted or symptoms.failed_silently):
        return formatting.filled(_TABLE["needed"]["silent" if min(silent) >= 0 else "unnamed"], {"ranks": silent})
    if symptoms is not None and (failed := f"{symptoms.failure} {symptoms.warning}".strip()):
        return str(next(ask for words, ask in _TABLE["asks"] if re.search(words, failed)))
    if symptoms is None:
        return str(_TABLE["needed"]["logs"])
    is_bare = not (symptoms.waits or symptoms.kinds & TRANSPORT)
    rest = "again" if not symptoms.kinds else "logs" if symptoms.library == "nccl" else "not_nccl"
    return str(_TABLE["needed"]["stopped" if "stop_ignored" in symptoms.kinds else "stderr" if is_bare else rest])


def _who(wait: Waiting) -> str:
    if wait.processes:
        return f"{formatting.verb(wait.processes, 'process', 'processes')} {formatting.first_of(wait.processes)}"
    return formatting.ranks_spoken(wait.ranks or (formatting.UNNAMED,))


def _call(wait: Waiting) -> str:
    if not wait.op:
        return "a collective" if wait.seq is None else f"collective #{wait.seq:,}"
    size = f" of {formatting.counted(wait.numel, 'element')}" if wait.numel is not None else ""
    return f"{wait.op}{size}{f' at {wait.site}' if wait.site else ''}"


def _waits(wait: Waiting) -> str:
    parts = [f"{_who(wait)}: {_call(wait)}"]
    if wait.seq is not None and wait.op:
        parts.append(f"#{wait.seq:,}")
    if wait.group:
        parts.append(_said("group_of" if wait.members else "group", wait=wait))
    elif wait.members:
        parts.append(_said("unnamed_group", wait=wait))
    if wait.waited_s:
        since = f" since {wait.since}" if wait.since else ""
        parts.append(
            f"for {formatting.seconds_text(round(wait.waited_s) if wait.waited_s >= 1 else wait.waited_s)}{since}"
        )
    if wait.enqueued is not None and wait.seq is not None and wait.enqueued > wait.seq:
        parts.append(_said("after_it", count=wait.enqueued - wait.seq))
    if wait.behind:
        who = "" if wait.behind == wait.ranks else f" on {formatting.ranks_text(wait.behind)}"
        parts.append(_said("behind", who=who))
    if wait.first:
        parts.append(_said("first"))
    return ", ".join(parts)
