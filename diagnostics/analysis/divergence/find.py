"""Finds the divergences of a job from the histories of all ranks: whose calls differ, where first, and how."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence.evidence_terms import CERTAIN_AFTER, Term, support
from diagnostics.analysis.divergence.explanation import Edit, Explanation, Kind, by_condition, explain, origin
from diagnostics.analysis.divergence.identity import agree, shared_path
from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.vote import Vote, count_votes, supported
from diagnostics.contract.findings import POSSIBLE, PROBABLE, SUSPECTED
from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.model import LogFact

SAME_MOMENT_S = 0.05  # Maximum difference between the times that two recorders note for one call.
MAX_GROUPS = 64  # Maximum number of groups whose histories are read again; the earliest divergence is what counts.
CallsOf = Callable[[int, GroupKey], list[Call]]  # One rank's calls in one group, oldest first.
Pair = tuple[Call, Call]  # The calls of the majority and of the minority.


class Divergence(Struct, frozen=True):
    """Ranks of one group whose calls differ."""

    vote: Vote
    majority_rank: int
    """The rank that stands for the majority: the first one of its side."""
    minority_rank: int
    majority: Call
    """The majority's call at the position where the two sides diverge."""
    minority: Call
    explanation: Explanation
    culprits: tuple[int, ...]
    """The ranks that deviate: at a tie usually those of all sides; empty if no two ranks agree."""
    tie: bool
    whole: bool = False
    """Whether the complete programs of all ranks are known, as in a simulation."""
    ended: Literal["", "majority", "minority"] = ""
    """The side that made no call at this position, if any: its call here is the last one that it made before."""
    iterations: tuple[int, int] | None = None
    """Numbers of iterations of the minority and the majority, if whole programs are known."""
    groups_known: bool = True
    """Whether both calls are known to be in one group; otherwise only the lines at which ranks wait are known."""
    payload: tuple[int, int] | None = None
    """Bytes that `minority_rank` sends and `majority_rank` expects, in calls that otherwise match."""
    passed: int = 0
    """Last position that all peers completed, if they went on without the culprits; 0 if they did not."""
    lines: tuple[LogFact, ...] = ()
    """The lines of a log that show the calls, if no recorder kept them."""
    limit: float = 1.0
    """Highest confidence that the source of the calls allows, if it is no history."""
    turned: bool = False
    """Whether the minority may make the same calls of two groups in another order, by the rounds before."""

    @property
    def key(self) -> GroupKey:
        """The group."""
        return self.vote.key

    @property
    def position(self) -> int:
        """Position in the group at which the two sides diverge."""
        return self.majority.seq if self.majority.key == self.key != self.minority.key else self.minority.seq

    @property
    def kind(self) -> Kind:
        """What the minority did."""
        return self.explanation.kind

    @property
    def peers(self) -> tuple[int, ...]:
        """The ranks that issued a call at the position of the vote and are not culprits."""
        return tuple(rank for rank in self.vote.present if rank not in self.culprits)

    @property
    def time_s(self) -> float:
        """Time of the earlier of the two calls, seconds since 1970; 0 = not recorded."""
        return min((call.created_s for call in (self.majority, self.minority) if call.created_s), default=0.0)

    @property
    def confidence(self) -> float:
        """Probability that the kind and the culprits are right."""
        if self.explanation.alternatives:
            return SUSPECTED  # Two kinds explain the same calls.
        if self.limit < 1.0:
            return min(self.explanation.confidence, self.limit)
        # The calls differ; open is which side is wrong, or the group: a line of a log may not name it.
        limits = [PROBABLE] * self.tie + [POSSIBLE] * (not self.groups_known)
        return min(self.explanation.confidence, *limits, 1.0)


def explained(vote: Vote, calls: Pair, explanation: Explanation, **more: Any) -> Divergence:
    """Return the divergence of the first two sides of a vote, which made these calls.

    `more` are other fields, and `ranks`: those that stand for the two sides, if not the first of each.
    """
    first, second = more.pop("ranks", None) or (vote.sides[0][0], vote.sides[1][0])
    fields: dict[str, Any] = {"culprits": vote.minority, "tie": vote.tie} | more
    return Divergence(vote, first, second, *calls, explanation, **fields)


def edited(vote: Vote, calls: Pair, edit: Edit, term: Term, run: tuple[Call, ...] = (), **more: Any) -> Divergence:
    """Return the divergence of two sides of which `term` shows how they differ; `more` is as for `explained`.

    `run` are the calls that were dropped or inserted, if not the one that a side lacks at the position.
    """
    of_one_side = {"drop": calls[:1], "insert": calls[1:]} if edit[1] != "after" else {}
    return explained(vote, calls, Explanation(*edit, run or of_one_side.get(edit[0], calls), (term,)), **more)


def between(
    vote: Vote, calls_of: CallsOf, ended: Iterable[int] = (), steps: Mapping[int, bool] | None = None
) -> Divergence | None:
    """Compare the two largest sides of a vote; return None if one of them has no call recorded at the position.

    `ended` are ranks that ended normally afterwards; `steps` says whether a rank stopped before the last one requested.
    """
    most, fewest = vote.sides[0][0], vote.sides[1][0]
    most_calls, fewest_calls = calls_of(most, vote.key), calls_of(fewest, vote.key)
    if not all(any(call.seq == vote.position for call in calls) for calls in (most_calls, fewest_calls)):
        return None
    if len(most_calls) == len(fewest_calls) == 1 and agree(most_calls[0].wire, fewest_calls[0].wire):
        return None  # Parts of a coalesced block of which only one was kept.
    position = origin(most_calls, fewest_calls, vote.position)
    explanation = explain(most_calls, fewest_calls, position)
    tie, culprits = vote.tie, vote.minority
    if tie:
        turned = explain(fewest_calls, most_calls, position)
        if _shows_itself(turned, vote, most):
            explanation, most, fewest, most_calls, fewest_calls = turned, fewest, most, fewest_calls, most_calls
        early = explanation.kind == "fewer_iterations" and bool(steps and steps.get(fewest))
        if early or _shows_itself(explanation, vote, fewest):
            tie, culprits = False, vote.side_of(fewest)
        elif len(vote.sides) > 2 and len(vote.sides[0]) == 1:
            culprits = ()  # No two ranks agree, so none of them deviates from the others.
    majority, minority = (next(call for call in calls if call.seq == position) for calls in (most_calls, fewest_calls))
    halves = tie and len(vote.sides[1]) > 1 and majority.wire.op != minority.wire.op
    if halves and explanation.kind in {"left_out", "added"} and not explanation.aligned:
        # Two halves of several ranks each took a branch, and neither is the exception.
        both = Explanation("substitute", "within", (majority, minority), (support("halves"),))
        explanation = by_condition(majority, minority) or both
    is_within = explanation.deviation != "drop" and explanation.place == "within"
    if not tie and is_within and set(culprits) <= {*ended} and not {*vote.present} <= {*ended}:
        deviation = "substitute" if explanation.deviation == "swap" else explanation.deviation
        explanation = Explanation(deviation, "ended", (majority, minority), (support("ended in order"),))
    # Programs save, log and evaluate on a group's first rank alone, within the loop as well as after it, usually in a
    # function that ends in a barrier: neither the caller nor the operation distinguishes the two.
    is_first = vote.side_of(fewest) == (min((*vote.present, *vote.silent)),)
    is_certain = any(term.name in CERTAIN_AFTER for term in explanation.terms)
    if is_first and (explanation.deviation, explanation.place) == ("insert", "after") and not is_certain:
        explanation = replace(explanation, alternatives=("added",))
    return explained(vote, (majority, minority), explanation, ranks=(most, fewest), culprits=culprits, tie=tie)


def at_split(divergence: Divergence) -> Divergence:
    """Remove the innermost frames that both calls share, so that each is shown at the line where the paths split."""
    stacks = divergence.majority.stack, divergence.minority.stack
    shared = tuple(shared_path(stacks))
    if len(shared) == min(map(len, stacks)):
        return divergence

    def trimmed(call: Call) -> Call:
        return replace(call, stack=call.stack[len(shared) :]) if call.stack[: len(shared)] == shared else call

    explanation = replace(divergence.explanation, calls=tuple(map(trimmed, divergence.explanation.calls)))
    calls = {"majority": trimmed(divergence.majority), "minority": trimmed(divergence.minority)}
    return replace(divergence, explanation=explanation, **calls)


def find(
    survey: Survey,
    calls_of: CallsOf,
    reaching: Callable[[Iterable[int]], set[int]],
    ended: Iterable[int] = (),
    steps: Mapping[int, bool] | None = None,
) -> list[Divergence]:
    """Find the divergences of a job: the earliest one, and those of ranks that it cannot have affected.

    `reaching` returns the ranks that wait, directly or indirectly, for the given ones; the rest is as for `between`.
    """
    ended = set(ended)
    votes = []
    for key, table in sorted(survey.groups.items()):
        differing = ((at, issued) for at in sorted(table.deviations) if len(issued := table.issued_at(at)) > 1)
        for at, issued in islice(differing, 1):
            calls = {rank: number for number, ranks in issued.items() for rank in ranks}
            votes.append(count_votes(key, at, calls, survey.members(key)))

    def last_seen_s(vote: Vote) -> float:
        """Return the time of the earliest last call of the sides, a cheap estimate of the order of divergences."""
        lines = [survey.groups[vote.key].lines[side[0]] for side in vote.sides]
        calls = [line.pending or line.last for line in lines]
        return min((call.created_s or 0.0 if call else 0.0 for call in calls), default=0.0)

    votes.sort(key=last_seen_s)
    votes = [_of_groups_alike(survey, vote) if vote.tie else vote for vote in votes[:MAX_GROUPS]]
    divergences = [case for vote in votes if (case := between(vote, calls_of, ended, steps))]
    remaining = sorted(divergences, key=lambda case: (case.time_s, case.key, case.vote.position))
    independent = []
    while remaining:
        first = remaining[0]
        touched = set(survey.members(first.key)) | set(first.vote.present)
        simultaneous = [case for case in remaining if case.time_s - first.time_s <= SAME_MOMENT_S]
        related = [case for case in simultaneous if touched & set(case.vote.present)]
        order = [(not at.explanation.alternatives, at.explanation.confidence, not at.tie) for at in related]
        best = _in_ring_positions(related[order.index(max(order))], related)
        touched |= reaching(touched) | set(best.vote.present)
        independent.append(best)
        remaining = [case for case in remaining[1:] if not touched & set(case.vote.present)]
    return independent


def _of_groups_alike(survey: Survey, vote: Vote) -> Vote:
    """Return the vote, settled by the groups with the same description and size if these show which side is right."""
    key, size = vote.key, len(survey.members(vote.key))
    kind = (key.recorder, key.desc)
    alike = [group for group in survey.groups if group != key and (group.recorder, group.desc) == kind]
    numbers = {ranks[0]: number for number, ranks in survey.groups[key].issued_at(vote.position).items()}
    others = [survey.groups[group].issued_at(vote.position) for group in alike if len(survey.members(group)) == size]
    return supported(vote, [sum(len(issued.get(numbers[side[0]], ())) for issued in others) for side in vote.sides])


def _in_ring_positions(best: Divergence, same: list[Divergence]) -> Divergence:
    """Return the same divergence at the positions of dtk's ring, which records step, root and ReduceOp."""
    for case in same:
        if case is best or case.key.recorder != SNAPSHOTS or case.culprits != best.culprits:
            continue
        if _recorded_twice(best.majority, case.majority) and _recorded_twice(best.minority, case.minority):
            first = case.majority if best.explanation.calls[0] is best.majority else case.minority
            explanation = replace(best.explanation, calls=(first, *best.explanation.calls[1:]))
            return replace(case, explanation=explanation, tie=best.tie)
    return best


def _recorded_twice(first: Call, second: Call) -> bool:
    places = {(call.site.file, call.site.line) if call.site else None for call in (first, second)}
    return first.site is not None and len(places) == 1 and first.wire.op == second.wire.op


def _shows_itself(explanation: Explanation, vote: Vote, rank: int) -> bool:
    certain = explanation.kind in {"gradients_not_ready", "fewer_iterations"}
    return explanation.self_evident and (certain or (explanation.kind == "added" and len(vote.side_of(rank)) == 1))
