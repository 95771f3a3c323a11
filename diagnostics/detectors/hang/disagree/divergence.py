"""Ranks that disagree about the sequence of collectives: another operation, other arguments, calls left out or added.

Votes at the first divergence of each group, then reads the two sides again to say what kind it is.
"""

from dataclasses import replace

from diagnostics.analysis.divergence import sequence
from diagnostics.analysis.divergence.difference import Difference
from diagnostics.analysis.divergence.vote import Vote, first_divergence
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.contract.findings import EvidenceItem, Finding, Where
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.disagree import words
from diagnostics.detectors.hang.disagree.words import CAUSES, Split
from diagnostics.evidence.calls import Call
from diagnostics.evidence.rank_endings import mismatch_facts

TIE_CONFIDENCE = 0.8
EITHER_CONFIDENCE = 0.45
"""Of each of two causes that explain the same calls: a suspicion, no root cause."""
SAME_MOMENT_S = 0.05
"""Two recorders note the same call at nearly the same time."""
_MAY_BE_THE_END = {"extra", "operation", "signature"}
MAX_GROUPS = 64
"""Groups looked at closely; the earliest divergence is what counts."""


def find(context: Context, known: Split | None = None) -> list[Finding]:
    """Confirmed divergences: the earliest one, and those of groups it cannot have touched.

    Args:
        context: all ranks' calls.
        known: the divergence, where more is known than the calls up to the stall.
    """
    splits = _voted(context) if known is None else [known]
    splits.sort(key=lambda split: (split.time_s, split.vote.key, split.vote.seq))
    found = []
    while splits:
        first = splits[0]
        touched = set(context.survey.members(first.vote.key)) | set(first.vote.all)
        same = [s for s in splits if s.time_s - first.time_s <= SAME_MOMENT_S and touched & set(s.vote.all)]
        best = _as_the_watch_counts(max(same, key=lambda split: (split.difference.confidence, not split.tie)), same)
        touched |= context.waits.reaching(touched) | set(best.vote.all)
        context.settled |= touched
        context.blamed |= set(best.blamed)
        context.siblings = context.siblings or words.siblings(best)
        found += findings(context, best)
        splits = [split for split in splits[1:] if not touched & set(split.vote.all)]
    return found


def _voted(context: Context) -> list[Split]:
    """What the votes at each group's first divergence come to."""
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
    return splits


def _as_the_watch_counts(best: Split, same: list[Split]) -> Split:
    """The same divergence in the positions of dtk's ring, which has step, root and ReduceOp; the kind stays."""
    for other in same:
        if other is best or other.vote.key.recorder != SNAPSHOTS or other.blamed != best.blamed:
            continue
        if _alike(best.usual, other.usual) and _alike(best.odd, other.odd):
            first = other.usual if best.difference.calls[0] is best.usual else other.odd
            difference = replace(best.difference, calls=(first, *best.difference.calls[1:]))
            return replace(other, difference=difference, tie=best.tie)
    return best


def _alike(one: Call, other: Call) -> bool:
    """Whether two recorders wrote down the same call."""
    return one.site is not None and words.place(one) == words.place(other) and one.wire.op == other.wire.op


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
        if _shows_itself(other_way, vote, rank_a):
            difference, rank_a, rank_b, at_a, at_b = other_way, rank_b, rank_a, at_b, at_a
        if _shows_itself(difference, vote, rank_b) or _left_early(context, difference, rank_b):
            tie, blamed = False, next(side for side in vote.sides if rank_b in side)
    halves = tie and len(vote.sides[1]) > 1 and at_a.wire.op != at_b.wire.op
    if halves and difference.kind in {"skipped", "extra"} and not difference.aligned:
        # Several ranks against as many: two branches, of which neither is the exception.
        difference = Difference("operation", 0.8, (at_a, at_b), "each half of the ranks makes a call of its own")
    if not tie and difference.kind in _MAY_BE_THE_END and all(_ended_in_order(context, rank) for rank in blamed):
        difference = Difference("fewer", 0.9, (at_a, at_b), "it ended in order afterwards")
    times = [call.created_s for call in (at_a, at_b) if call.created_s]
    return Split(vote, at_a, at_b, difference, rank_a, rank_b, blamed, tie, min(times, default=0.0))


def _shows_itself(difference: Difference, vote: Vote, rank: int) -> bool:
    """Whether it is known that `rank` did what differs, however many are on its side.

    Half of the ranks that make a call within the loop took a branch of it, of which neither is the exception.
    """
    alone = len(next(side for side in vote.sides if rank in side)) == 1
    return difference.settled and (difference.kind in {"bucket", "fewer"} or (difference.kind == "extra" and alone))


def _left_early(context: Context, difference: Difference, rank: int) -> bool:
    """Whether a rank of a dtk run left the loop before the last step that was asked for."""
    run = context.evidence.run
    steps = run.get("train.steps") if run is not None else None
    return difference.kind == "fewer" and isinstance(steps, int) and (context.step_of(rank) or steps) < steps


def _ended_in_order(context: Context, rank: int) -> bool:
    end = context.ends.get(rank)
    return end is not None and end.in_order


def findings(context: Context, split: Split) -> list[Finding]:
    """One, or one for each kind where two explain the same calls: then neither is sure."""
    if split.difference.other is None:
        return [_finding(context, split)]
    pair = words.pair(split)
    summary = words.either(split, tuple(rank for rank in split.vote.all if rank not in split.blamed))
    fixes = [words.remedies(context, one) for one in pair]
    found = []
    for number, one in enumerate(pair):
        both = tuple(dict.fromkeys((*fixes[number], *fixes[1 - number])))
        finding = _finding(context, one)
        found.append(replace(finding, summary=summary, confidence=EITHER_CONFIDENCE, remedies=both))
    return found


def _finding(context: Context, split: Split) -> Finding:
    survey, vote, difference = context.survey, split.vote, split.difference
    peers = tuple(rank for rank in vote.all if rank not in split.blamed)
    victims = set(survey.members(vote.key)) | set(vote.all) | context.waits.reaching(vote.all)
    group = say.group(survey, vote.key)
    details = {
        split.odd_rank: f"#{split.odd.seq} is {split.odd.text}",
        split.usual_rank: f"#{split.usual.seq} is {split.usual.text}",
    }
    summary = words.summary(split, peers)
    if vote.silent:
        there = [rank for rank in vote.silent if rank not in survey.ranks]
        if there:
            summary += f" {say.sentence(say.ranks(there))} left no dump."
    confidence = min(difference.confidence, TIE_CONFIDENCE) if split.tie else difference.confidence
    each_alone = split.tie and len(vote.sides) > 2 and len(vote.sides[0]) == 1
    culprits = () if each_alone else split.blamed
    return Finding(
        cause=CAUSES[difference.kind],
        status="confirmed",
        summary=summary,
        confidence=confidence,
        ranks=culprits,
        victims=tuple(sorted((victims | set(split.blamed)) - set(culprits))),
        group=group,
        position=split.odd.seq,
        step=split.odd.step or split.usual.step,
        where=tuple(_places(split, difference)),
        cost=context.cost(),
        evidence=(*say.flight(survey, details), *_mismatch_lines(context, difference)),
        remedies=words.remedies(context, split),
        measured=(
            f"{len(split.blamed)} of {len(vote.all)} ranks differ at position {split.odd.seq} of group "
            f"{say.label(vote.key)}"
        ),
    )


def _places(split: Split, difference: Difference) -> list[Where]:
    """Both sides, the odd one first."""
    if difference.kind in {"skipped", "fewer", "bucket"}:
        stands = "ends after" if split.ended else "is already in"
        odd = say.where(split.odd_rank, split.odd, f"{stands} {split.odd.text}")
        return [*odd, *_missed(split, difference)]
    return [*say.where(split.odd_rank, split.odd), *say.where(split.usual_rank, split.usual)]


def _missed(split: Split, difference: Difference) -> list[Where]:
    return say.where(split.usual_rank, split.usual, f"waits in {split.usual.text}") or say.where(
        split.usual_rank, difference.calls[0]
    )


def _mismatch_lines(context: Context, difference: Difference) -> tuple[EvidenceItem, ...]:
    if difference.kind not in {"signature", "operation"}:
        return ()
    return tuple(EvidenceItem("log", fact.file, fact.text, fact.line) for fact in mismatch_facts(context.evidence)[:2])
