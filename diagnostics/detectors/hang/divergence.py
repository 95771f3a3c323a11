"""Ranks that disagree about the sequence of collectives: another operation, other arguments, calls left out or added.

Votes at the first divergence of each group, then reads the two sides again to say what kind it is.
"""

from dataclasses import dataclass

from diagnostics.detectors.hang import say, sequence
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.ends import mismatch_facts
from diagnostics.detectors.hang.sequence import Difference
from diagnostics.detectors.hang.vote import Vote, first_divergence
from diagnostics.evidence.calls import Call
from diagnostics.findings import EvidenceItem, Finding, Remedy, Where

CAUSES = {
    "signature": "hang.signature_mismatch",
    "operation": "hang.collective_mismatch",
    "skipped": "hang.conditional_collective",
    "extra": "hang.conditional_collective",
    "fewer": "hang.uneven_iterations",
    "more": "hang.uneven_iterations",
    "bucket": "hang.unused_parameters",
}
TIE_CONFIDENCE = 0.8
SAME_MOMENT_S = 0.05
"""Two recorders note the same call at nearly the same time."""
_MAY_BE_THE_END = {"extra", "operation", "signature"}
MAX_GROUPS = 64
"""Groups looked at closely; the earliest divergence is what counts."""


@dataclass(slots=True)
class Split:
    """A divergence, looked at closely."""

    vote: Vote
    usual: Call
    odd: Call
    difference: Difference
    usual_rank: int
    odd_rank: int
    blamed: tuple[int, ...]
    tie: bool
    time_s: float


def find(context: Context) -> list[Finding]:
    """Confirmed divergences: the earliest one, and those of groups it cannot have touched."""
    splits = []
    votes = []
    for key, table in sorted(context.survey.groups.items()):
        vote = first_divergence(context.survey, key, table)
        if vote is not None:
            votes.append(vote)
    votes.sort(key=lambda vote: min(_line_time(context, vote)))
    for vote in votes[:MAX_GROUPS]:
        split = _closely(context, vote)
        if split is not None:
            splits.append(split)
    splits.sort(key=lambda split: (split.time_s, split.vote.key, split.vote.seq))
    found = []
    while splits:
        first = splits[0]
        touched = set(context.survey.members(first.vote.key)) | set(first.vote.all)
        same = [s for s in splits if s.time_s - first.time_s <= SAME_MOMENT_S and touched & set(s.vote.all)]
        best = max(same, key=lambda split: (split.difference.confidence, not split.tie))
        touched |= context.waits.reaching(touched) | set(best.vote.all)
        context.settled |= touched
        context.blamed |= set(best.blamed)
        found.append(_finding(context, best))
        splits = [split for split in splits[1:] if not touched & set(split.vote.all)]
    return found


def _line_time(context: Context, vote: Vote) -> list[float]:
    """When the ranks of the smallest sides made their last call; a cheap guess at the order of divergences."""
    table = context.survey.groups[vote.key]
    times = []
    for side in vote.sides:
        call = table.lines[side[0]].pending or table.lines[side[0]].last
        times.append(call.created_s or 0.0 if call else 0.0)
    return times or [0.0]


def _closely(context: Context, vote: Vote) -> Split | None:
    """Read one rank of each of the two largest sides again and compare them."""
    rank_a, rank_b = vote.sides[0][0], vote.sides[1][0]
    calls_a, calls_b = context.reading.calls(rank_a, vote.key), context.reading.calls(rank_b, vote.key)
    at_a = next((call for call in calls_a if call.seq == vote.seq), None)
    at_b = next((call for call in calls_b if call.seq == vote.seq), None)
    if at_a is None or at_b is None or (at_a.wire == at_b.wire and len(calls_a) == len(calls_b) == 1):
        return None
    seq = sequence.origin(calls_a, calls_b, vote.seq)
    at_a = next(call for call in calls_a if call.seq == seq)
    at_b = next(call for call in calls_b if call.seq == seq)
    difference = sequence.compare(calls_a, calls_b, seq)
    tie, blamed = vote.tie, vote.odd
    if tie:
        other_way = sequence.compare(calls_b, calls_a, seq)
        if other_way.kind == "bucket":
            difference, rank_a, rank_b, at_a, at_b = other_way, rank_b, rank_a, at_b, at_a
        if difference.kind == "bucket":
            # Which side left backward early is known, however many they are.
            side = next(side for side in vote.sides if rank_b in side)
            tie, blamed = False, side
    if not tie and difference.kind in _MAY_BE_THE_END and all(_ended_in_order(context, rank) for rank in blamed):
        difference = Difference("fewer", 0.9, (at_a, at_b), "it ended in order afterwards")
    times = [call.created_s for call in (at_a, at_b) if call.created_s]
    return Split(vote, at_a, at_b, difference, rank_a, rank_b, blamed, tie, min(times, default=0.0))


def _ended_in_order(context: Context, rank: int) -> bool:
    end = context.ends.get(rank)
    return end is not None and end.manner == "exited"


def _finding(context: Context, split: Split) -> Finding:
    survey, vote, difference = context.survey, split.vote, split.difference
    peers = tuple(rank for rank in vote.all if rank not in split.blamed)
    victims = set(survey.members(vote.key)) | set(vote.all) | context.waits.reaching(vote.all)
    group = say.group(survey, vote.key)
    where = [
        *say.where(split.odd_rank, split.odd),
        *say.where(split.usual_rank, split.usual),
    ]
    if difference.kind in {"skipped", "fewer", "bucket"}:
        where = [
            *say.where(split.odd_rank, split.odd, f"is already in {split.odd.text}"),
            *_missed(split, difference),
        ]
    details = {
        split.odd_rank: f"#{split.odd.seq} is {split.odd.text}",
        split.usual_rank: f"#{split.usual.seq} is {split.usual.text}",
    }
    summary = _summary(split, peers)
    if vote.silent:
        there = [rank for rank in vote.silent if rank not in survey.ranks]
        if there:
            summary += f" {say.sentence(say.ranks(there))} left no dump."
    confidence = min(difference.confidence, TIE_CONFIDENCE) if split.tie else difference.confidence
    return Finding(
        cause=CAUSES[difference.kind],
        status="confirmed",
        summary=summary,
        confidence=confidence,
        ranks=split.blamed,
        victims=tuple(sorted(victims - set(split.blamed))),
        group=group,
        position=split.odd.seq,
        step=split.odd.step or split.usual.step,
        where=tuple(where),
        cost=context.cost(),
        evidence=(*say.flight(survey, details), *_mismatch_lines(context, difference)),
        remedies=_remedies(context, split),
        measured=(
            f"{len(split.blamed)} of {len(vote.all)} ranks differ at position {vote.seq} of group "
            f"{group.desc or group.name}"
        ),
    )


def _missed(split: Split, difference: Difference) -> list[Where]:
    return say.where(split.usual_rank, split.usual, f"waits in {split.usual.text}") or say.where(
        split.usual_rank, difference.calls[0]
    )


def _mismatch_lines(context: Context, difference: Difference) -> tuple[EvidenceItem, ...]:
    if difference.kind not in {"signature", "operation"}:
        return ()
    return tuple(EvidenceItem("log", fact.file, fact.text, fact.line) for fact in mismatch_facts(context.evidence)[:2])


def _summary(split: Split, peers: tuple[int, ...]) -> str:
    """What happened, to whom, where: one or two sentences."""
    odd, usual, kind = split.odd, split.usual, split.difference.kind
    side = next((side for side in split.vote.sides if split.odd_rank in side), (split.odd_rank,))
    who = say.sentence(say.ranks(side if split.tie else split.blamed))
    if split.tie:
        peers = tuple(rank for rank in split.vote.all if rank not in side)
    rest = say.ranks(peers) if peers else "the others"
    at = f"position {split.odd.seq} of group {split.vote.key.name}"
    count = len(split.difference.calls)
    more = f" and {count - 1} more" if count > 1 and kind in {"skipped", "extra"} else ""
    if kind == "signature":
        text = (
            f"{who} {'calls' if len(side) == 1 else 'call'} {say.call(odd, False)} where {rest} have "
            f"{say.call(usual, False)}, at {at}."
        )
        if (odd.wire.op, odd.text) == (usual.wire.op, usual.text):
            text += " The arguments differ."
    elif kind == "operation":
        text = (
            f"{who} {say.verb(side, 'calls', 'call')} {say.call(odd, False)} where {rest} call "
            f"{say.call(usual, False)}, at {at}."
        )
    elif kind == "skipped":
        text = (
            f"{who} left out {say.call(split.difference.calls[0])}{more} that {rest} wait in; "
            f"{say.verb(side, 'it is', 'they are')} already in {say.call(odd, False)}."
        )
    elif kind == "extra":
        text = (
            f"Only {say.ranks(side)} {say.verb(side, 'calls', 'call')} {say.call(split.difference.calls[0])}{more}; "
            f"{rest} are in {say.call(usual, False)}."
        )
    elif kind == "fewer":
        text = (
            f"{who} left the loop that {rest} are still in: {say.call(odd, False)} meets {say.call(usual, False)} "
            f"at {at}."
        )
    elif kind == "more":
        text = (
            f"{who} {say.verb(side, 'runs', 'run')} on with {say.call(odd, False)} where {rest} "
            f"{say.verb(peers, 'is', 'are')} in {say.call(usual, False)}, at {at}."
        )
    else:
        text = (
            f"{who} left backward without {say.call(usual)}, which {rest} {say.verb(peers, 'waits', 'wait')} "
            "in: some of its "
            "parameters got no gradient in this step."
        )
    if split.tie:
        text += (
            f" It is a tie ({' against '.join(str(len(one)) for one in split.vote.sides)}): either side may be "
            "the wrong one."
        )
    return text


def _remedies(context: Context, split: Split) -> tuple[Remedy, ...]:
    kind, odd = split.difference.kind, split.odd
    missed = split.difference.calls[0]
    here = _place(odd)
    there = _place(split.usual)
    override = None
    if kind == "signature":
        change = f"make {here} use the same shape, dtype, root and ReduceOp on every rank"
        why = "a collective needs equal arguments on all ranks of its group"
    elif kind == "operation":
        change = f"let all ranks take the same branch: {here} and {there} must be the same collective"
        why = "collectives are matched by their order in the group, not by name"
    elif kind == "bucket":
        change = (
            f"let every parameter take part in the loss, or set find_unused_parameters=True in DDP (waits at {there})"
        )
        why = "DDP reduces a bucket only when all its gradients are ready"
        override = ("strategy.find_unused_parameters=true", "DDP then marks parameters without a gradient as ready")
    elif kind in {"fewer", "more"}:
        change = (
            "let all ranks agree on the number of steps (all_reduce a stop flag, drop uneven batches, or DDP's "
            f"join) around {there}"
        )
        why = "each rank must run the loop equally often"
    elif kind == "skipped":
        change = f"call {missed.text} at {_place(missed)} on all ranks, or on none"
        why = "a collective inside a condition that differs by rank leaves the others waiting"
    else:
        change = f"take the condition off {_place(missed)}, so that all ranks call {missed.text} or none"
        why = "a collective that only some ranks call meets another one of their peers"
    return say.remedies(context.evidence, change, why, override if _is_ddp(context) else None)


def _is_ddp(context: Context) -> bool:
    run = context.evidence.run
    return run is not None and run.get("strategy.name") in {"ddp", "zero1"}


def _place(call: Call) -> str:
    return f"{call.site.file}:{call.site.line}" if call.site else f"position {call.seq}"
