"""A rank that ended in order while its peers went on: did it run fewer steps, or end in the middle of one?

By the steps that were recorded, else by the rounds of equal calls that its own dump shows. Without either it says
what is lacking. Knows no other cause.
"""

from dataclasses import dataclass, replace

from diagnostics.analysis.divergence import on_path, predict
from diagnostics.contract.findings import Finding
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.ended import last_seen
from diagnostics.evidence.calls import Call, GroupKey

CAUSE = "hang.uneven_iterations"
_ROUNDS = 2
"""Whole rounds that show a loop."""


@dataclass(frozen=True, slots=True)
class _Stop:
    """Where a rank's calls end in the loop that its peers are in."""

    size: int
    """Calls of one round."""
    rounds: int
    """Whole rounds that it made, as far as its record goes back."""
    over: int
    """Calls of the round in which it ended; 0 = it ended between two rounds."""
    last: Call
    peer: int
    pending: Call


def find(context: Context, exited: Finding) -> list[Finding]:
    """One finding at most, about ranks that `exited` tells the end of."""
    by_step = _by_step(context, exited)
    if by_step is not None:
        return [by_step]
    dumped = [rank for rank in exited.ranks if rank in context.survey.ranks]
    stops = {rank: stop for rank in dumped if (stop := _stop(context, rank)) is not None}
    ended = {rank: stop for rank, stop in stops.items() if not stop.over}
    if ended:
        return [_by_rounds(context, exited, ended)]
    if stops:
        rank, stop = next(iter(stops.items()))
        why = (
            f"Rank {rank} ended in the middle of a round: after {stop.over} of the {stop.size} calls that its peers' "
            "loop repeats."
        )
        context.siblings[CAUSE] = (why, f"{stop.over} of {stop.size} calls of the last round")
        return []
    return [_open(context, exited)]


def _open(context: Context, exited: Finding) -> Finding:
    silent = tuple(rank for rank in exited.ranks if rank not in context.survey.ranks)
    ranks = silent or exited.ranks
    it, their = say.verb(ranks, "it", "they"), say.verb(ranks, "its", "their")
    why = "left no dump" if silent else "made calls that do not show where a round of a loop begins"
    missing = "steps: record.level=light in a run of dtk"
    if silent:
        missing = (
            f"the calls of {say.ranks(silent)} up to {their} end: a flight dump at exit, or dtk watch -- torchrun ..., "
            "whose rings stay behind"
        )
    summary = (
        f"{say.sentence(say.ranks(ranks))} {why}: whether {it} left {their} loop a round before the others, or ended "
        "elsewhere, cannot be told."
    )
    return say.undecided(CAUSE, summary, missing, exited.victims)


def _by_step(context: Context, exited: Finding) -> Finding | None:
    """Its peers are in a later step."""
    own = max((context.step_of(rank) or 0 for rank in exited.ranks), default=0)
    peers = {rank: context.step_of(rank) or 0 for rank in context.survey.ranks if rank not in exited.ranks}
    if not own or not peers or max(peers.values()) <= own:
        return None
    ahead = min(rank for rank, step in peers.items() if step == max(peers.values()))
    waiting = context.survey.ranks[ahead].pending()
    call = waiting[0] if waiting else context.survey.ranks[ahead].last
    return Finding(
        cause=CAUSE,
        status="confirmed",
        summary=(
            f"{say.sentence(say.ranks(exited.ranks))} ended in order after step {own}, while rank {ahead} went on with "
            f"step {peers[ahead]}" + (f" and waits in {say.call(call)}." if call else ".")
        ),
        confidence=0.9,
        ranks=exited.ranks,
        victims=tuple(sorted(peers)),
        step=own,
        where=(
            *last_seen.where(context, exited.ranks[0])[:1],
            *say.where(ahead, call),
        ),
        cost=exited.cost,
        evidence=(*exited.evidence, *say.flight(context.survey, {ahead: f"in step {peers[ahead]}"})),
        remedies=exited.remedies,
        measured=f"step {own} against {peers[ahead]}",
    )


def _by_rounds(context: Context, exited: Finding, stops: dict[int, _Stop]) -> Finding:
    """It made whole rounds only, and its peers began another one."""
    ranks = tuple(sorted(stops))
    stop = stops[ranks[0]]
    round_of = f"{stop.size} call{'s' * (stop.size > 1)}"
    return replace(
        exited,
        cause=CAUSE,
        summary=(
            f"{say.sentence(say.ranks(ranks))} left the loop between two rounds of {round_of}, after "
            f"{say.call(stop.last)}, and ended in order, while rank {stop.peer} went on with another round: "
            f"{say.call(stop.pending)}."
        ),
        confidence=0.85 if stop.last.site is not None and stop.size > 1 else 0.7,
        ranks=ranks,
        where=(
            *say.where(ranks[0], stop.last, f"made {stop.last.text} last"),
            *say.where(stop.peer, stop.pending, f"waits in {stop.pending.text}"),
        ),
        evidence=(*exited.evidence, *say.flight(context.survey, {stop.peer: f"waits in {stop.pending.text}"})),
        measured=f"{stop.rounds} whole rounds of {round_of}, and none begun",
    )


def _stop(context: Context, rank: int) -> _Stop | None:
    """Where the rank stopped, seen from a peer that made the call after its last one."""
    for key, line in sorted(context.survey.ranks[rank].lines.items()):
        peers = context.survey.groups[key].lines
        # Gloo marks a call that failed as it marks one that completed, so it need not be pending.
        peer = next((one for one in sorted(peers) if one != rank and peers[one].issued > line.issued), None)
        calls = context.reading.calls(peer, key) if peer is not None else []
        pending = next((call for call in calls if call.seq == line.issued + 1), None)
        if peer is not None and pending is not None:
            return _in_loop(context, rank, key, peer, pending)
    return None


def _in_loop(context: Context, rank: int, key: GroupKey, peer: int, pending: Call) -> _Stop | None:
    calls = [call for call in context.reading.calls(rank, key) if call.seq < pending.seq]
    tokens = [on_path(call) for call in calls]
    prediction = predict(tokens, on_path(pending))
    if prediction is None or not prediction.whole:
        return None
    size = prediction.round
    start = len(tokens) - size
    while start > 0 and tokens[start - 1] == tokens[start - 1 + size]:
        start -= 1
    whole, over = divmod(len(tokens) - start, size)
    if whole < _ROUNDS or (size > 1 and not _begins(calls, start, size)):
        return None
    return _Stop(size, whole, over, calls[-1], peer, pending)


def _begins(calls: list[Call], start: int, size: int) -> bool:
    """Whether a round begins where the calls begin to repeat.

    Not so where the record has lost its beginning, or where the first round differs in part, as DDP's does: then the
    calls before come from the same lines.
    """
    if start == 0:
        return calls[0].seq == 1
    return calls[start - 1].stack not in {call.stack for call in calls[start : start + size]}
