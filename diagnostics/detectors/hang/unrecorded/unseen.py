"""Sends and receives that gloo's recorder leaves out: found in stacks, and in tracebacks of calls that timed out."""

from dataclasses import dataclass

from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Where
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.model import Frame
from diagnostics.evidence.stacks import dumps as stacks

_FUNCTIONS = {"recv": "recv", "send": "send", "irecv": "recv", "isend": "send", "batch_isend_irecv": "batch"}
_DEPTH = 4
"""Innermost frames among which torch's own function is looked for."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A rank in a send or a receive."""

    direction: str
    where: Frame | None
    evidence: EvidenceItem


def find(context: Context) -> list[Finding]:
    """Confirmed where nobody is left to post the other half: all ranks receive, or the rest waits for those that do."""
    world = context.world()
    seen = _seen(context)
    directions = {one.direction for one in seen.values()}
    if world < 2 or directions not in ({"recv"}, {"send"}) or set(seen) & context.settled:
        return []
    rest = tuple(rank for rank in range(world) if rank not in seen)
    left = any(rank in context.ends and context.ends[rank].gone for rank in rest)
    if left or not set(rest) <= context.waits.reaching(seen):
        return []
    context.settled |= set(seen) | set(rest)
    return [_finding(context, seen, rest, directions.pop(), world)]


def _seen(context: Context) -> dict[int, _Seen]:
    """Rank -> the send or receive that its stack, or the error that ended it, stands in."""
    seen: dict[int, _Seen] = {}
    for rank, end in sorted(context.ends.items()):
        if end.victim:
            _add(seen, rank, end.frames, end.evidence.kind, end.evidence.file)
    for one in context.evidence.stacks:
        if one.rank is not None:
            thread = stacks.main_thread(one)
            seen.pop(one.rank, None)
            _add(seen, one.rank, thread.frames if thread else (), "stacks", one.file)
    return dict(sorted(seen.items()))


def _add(seen: dict[int, _Seen], rank: int, frames: tuple[Frame, ...], kind: str, file: str) -> None:
    direction = next((_FUNCTIONS[frame.function] for frame in frames[:_DEPTH] if frame.function in _FUNCTIONS), None)
    if direction is not None:
        where = next((frame for frame in frames if not is_library(frame.file)), None)
        seen[rank] = _Seen(direction, where, EvidenceItem(kind, file, f"rank {rank}: waits in {direction}"))


def _finding(context: Context, seen: dict[int, _Seen], rest: tuple[int, ...], direction: str, world: int) -> Finding:
    first = next((one.where for one in seen.values() if one.where is not None), None)
    at = f" ({say.short(first.file)}:{first.line})" if first else ""
    known = bool(context.evidence.world_size or context.survey.world())
    other = "sends" if direction == "recv" else "receives"
    if rest:
        summary = (
            f"{say.sentence(say.ranks(seen))} {say.verb(seen, 'waits', 'wait')} in {direction}{at} and nobody {other}: "
            f"{say.ranks(rest)} {say.verb(rest, 'is', 'are')} in a collective, waiting for {say.ranks(seen)}."
        )
    elif known:
        summary = f"All {len(seen)} ranks wait in {direction}{at} and none {other}."
    else:
        summary = (
            f"All {len(seen)} ranks that left a log wait in {direction}{at} and none of them {other}; nothing says "
            "whether the job has more ranks."
        )
    return Finding(
        cause="hang.p2p_cycle",
        status="confirmed",
        summary=summary,
        confidence=0.45 if not known else 0.85 if rest else 0.9,
        ranks=tuple(seen),
        victims=rest,
        where=tuple(
            Where(rank, one.where.file, one.where.line, one.where.function, f"waits in {direction}")
            for rank, one in list(seen.items())[:4]
            if one.where is not None
        ),
        cost=context.cost(),
        evidence=tuple(one.evidence for one in list(seen.values())[:6]),
        remedies=remedies(context, f"{first.file}:{first.line}" if first else ""),
        measured=f"{len(seen)} of {world} ranks in {direction}",
        missing="" if known else "the number of ranks: a dump, or the launcher's log of every node",
    )


def remedies(context: Context, place: str) -> tuple[Remedy, ...]:
    """How to order sends and receives at `place` (`/job/train.py:12`; empty where unknown)."""
    return say.remedies(
        context.evidence,
        f"let one side send before it receives, or post both with batch_isend_irecv, at {place or 'these calls'}",
        "a blocking send or receive returns only when the peer has posted the other half",
    )
