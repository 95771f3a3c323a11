"""The findings on a rank whose host or device stands still: what it does there, and who waits. Decides nothing."""

from contextlib import suppress
from dataclasses import replace

from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import EvidenceItem, Finding, Where
from diagnostics.contract.formatting import counted
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import Stacks
from diagnostics.evidence.stacks import activity
from diagnostics.evidence.stacks.activity import Standing

_CURE = {
    "data loader": (
        "look at what the data loader reads on that rank (slow disk, dead workers, a lock inherited by fork)"
    ),
    "file I/O": "move the file access off the path that other ranks wait for, or let all ranks do it",
    "lock": "find who holds the lock, or should fill the queue, that this line waits for",
    "compile": "compile before the first collective, or raise the timeout of the group for the first steps",
    "process": "look at the process that this line waits for: whether it lives, and what it waits for itself",
    "network": "look at the other side of the connection, and give it a timeout",
    "debugger": "take the breakpoint out",
    "sleep": "take the sleep out, or let all ranks wait at a barrier with a longer timeout",
}
_KNOWN = 0.95
"""Confidence where a stack shows what the host does."""


def host(context: Context, ranks: tuple[int, ...], operation: Operation, latest: dict[int, Stacks]) -> Finding:
    """Ranks that never reached what the others wait in."""
    waiting = context.waits.waiting[operation]
    call = context.waits.calls[waiting[0], operation]
    first = ranks[0]
    seen = latest.get(first)
    at = activity.doing(seen, taken_s(context, seen)) if seen is not None else activity.NOWHERE
    if context.region_of(first) == "data" and at.frame is not None and at.doing != "data loader":
        at = replace(at, doing="data loader", words=f"in the data loader, {at.words}")
    known = at.doing not in {"unknown", "collective"}
    last = context.survey.ranks[first].last
    evidence = say.flight(
        context.survey, {**dict.fromkeys(ranks, "nothing pending"), waiting[0]: f"waits in {call.text}"}
    )
    if seen is not None:
        evidence = (EvidenceItem("stacks", seen.file, f"rank {first}: {does(at)}"), *evidence)
    look = f"look at what {say.ranks(ranks)} did {_since(context, ranks, operation, last)}"
    return Finding(
        cause="hang.host_stall",
        status="confirmed",
        summary=_summary(context, ranks, operation, at),
        confidence=_KNOWN if known else 0.6,
        ranks=ranks,
        victims=tuple(sorted(context.waits.reaching(ranks) - set(ranks))),
        group=say.group(context.survey, operation.key),
        position=operation.seq if operation.peer < 0 else None,
        step=context.step_of(first),
        where=(*_place(first, at, last), *say.where(waiting[0], call, f"waits in {call.text}")),
        cost=context.cost(),
        evidence=evidence,
        remedies=say.remedies(
            context.evidence,
            cure(at, look),
            "everybody else waits for this rank's next collective",
        ),
        measured=(
            f"{counted(len(waiting), 'rank')} {say.verb(waiting, 'waits', 'wait')} for {say.ranks(ranks)}, which "
            f"{say.verb(ranks, 'has', 'have')} nothing pending"
        ),
    )


def cure(at: Standing, look: str = "look at what it does there") -> str:
    """What to change; `look` where the stack does not tell what the host does."""
    return _CURE.get(at.doing, look) + (f" ({at.frame.file}:{at.frame.line})" if at.frame else "")


def does(at: Standing) -> str:
    """`waiting for a queue (loader.py:7 in get)`"""
    frame = at.frame
    return at.words + (f" ({say.short(frame.file)}:{frame.line} in {frame.function})" if frame else "")


def taken_s(context: Context, seen: Stacks) -> float | None:
    """When a dump was taken (s since 1970), at the latest; None where not even its file tells."""
    if seen.time_s is not None:
        return seen.time_s
    with suppress(OSError, ValueError):
        return (context.evidence.root / seen.file).stat().st_mtime
    return None


def _since(context: Context, ranks: tuple[int, ...], operation: Operation, last: Call | None) -> str:
    """Where to begin to look: behind the last call, or before the position that was not reached."""
    if last is not None:
        return f"after {say.call(last)}"
    line = context.survey.ranks[ranks[0]].lines.get(operation.key)
    if line is not None and line.issued > 0:
        return f"after position {line.issued} of group {say.label(operation.key)}"
    if operation.seq > 1:
        return f"before position {operation.seq} of group {say.label(operation.key)}"
    return "at start-up"


def _place(rank: int, at: Standing, last: Call | None) -> list[Where]:
    if at.frame is not None:
        return [Where(rank, at.frame.file, at.frame.line, at.frame.function, f"stands there, {at.words}")]
    return say.where(rank, last, f"made {last.text} last" if last else None)


def _summary(context: Context, ranks: tuple[int, ...], operation: Operation, at: Standing) -> str:
    waiting = context.waits.waiting[operation]
    call = context.waits.calls[waiting[0], operation]
    missing = f"{call.text} (#{call.seq} of group {say.label(operation.key)})"
    if operation.peer >= 0:
        missing = f"the other half of {call.text}"
    summary = (
        f"{say.sentence(say.ranks(ranks))} never reached {missing}, which {say.ranks(waiting)} "
        f"{say.verb(waiting, 'waits', 'wait')} in"
    )
    if at.frame or at.doing not in {"unknown", "collective"}:
        return f"{summary}: its host is {does(at)}."
    summary += (
        f"; nothing is pending on {say.verb(ranks, 'it', 'them')} and no traceback or stack was left. "
        f"{say.verb(ranks, 'It is', 'They are')} late, stuck or gone: the dumps cannot tell."
    )
    ended = [rank for rank in ranks if rank in context.ends and context.ends[rank].kind == "failed"]
    if ended:
        summary += f" {say.sentence(say.ranks(ended))} ended with exit code 1, of its own or after a timeout."
    if all(context.may_be_unrecorded(rank) for rank in ranks):
        summary += " It may also sit in a send or recv, which gloo's recorder does not show."
    return summary


def device(context: Context, ranks: tuple[int, ...], operation: Operation) -> Finding:
    """Ranks whose device does not complete `operation`, which others completed."""
    survey, key = context.survey, operation.key
    line = survey.ranks[ranks[0]].lines[key]
    call = context.waits.calls[ranks[0], operation]
    peers = context.waits.complete[operation]
    ahead = max((survey.groups[key].lines[rank].done for rank in peers), default=line.done)
    counts = f"completed {line.done} of {line.issued} enqueued, its peers completed {ahead}"
    rest = sorted(context.waits.reaching(ranks) - set(ranks))
    devices = say.verb(ranks, "device", "devices")
    summary = (
        f"The {devices} of {say.ranks(ranks)} {say.verb(ranks, 'does', 'do')} not complete what the others complete: "
        f"rank {ranks[0]} stands at {say.call(call)} of group {say.label(key)} ({counts})."
    )
    if rest:
        summary += (
            f" {say.sentence(say.ranks(rest))} {say.verb(rest, 'waits', 'wait')} for {say.verb(ranks, 'it', 'them')}."
        )
    details = dict.fromkeys(ranks, "enqueued work that its peers completed") if peers else {ranks[0]: counts}
    return Finding(
        cause="hang.device_stall",
        status="confirmed",
        summary=summary,
        confidence=0.9,
        ranks=ranks,
        victims=tuple(rest),
        group=say.group(survey, key),
        position=operation.seq,
        where=tuple(say.where(ranks[0], call, f"enqueued {call.text}, which does not complete")),
        cost=context.cost(),
        evidence=say.flight(survey, {**details, **dict.fromkeys(peers[:1], f"completed #{operation.seq}")}),
        remedies=say.remedies(
            context.evidence,
            f"look for Xid and ECC errors on the {devices} of {say.ranks(ranks)} (dmesg, nvidia-smi -q), and for a "
            "kernel that never ends",
            "the host enqueued the work, the device does not finish it",
        ),
        measured=counts,
    )
