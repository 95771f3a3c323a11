"""Divergences for which one call per rank is known: from a running job, logs, waits, or sizes that differ."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.evidence_terms import Position, Support, position, support
from diagnostics.analysis.divergence.explanation import Explanation, left_loop
from diagnostics.analysis.divergence.find import Divergence, Vote
from diagnostics.analysis.divergence.loop_exit import in_branch, source_branches
from diagnostics.analysis.pairwise import Misfit
from diagnostics.evidence.calls import Call, Described, GroupKey, Wire
from diagnostics.evidence.model import Frame

Counters = Mapping[tuple[str, str], Mapping[str, int]]  # (file, function) of a frame -> whole numbers in its variables.
_GUESSES: set[Support | Position] = {"single position", "line unknown"}


def stated(vote: Vote, majority: Call, minority: Call, explanation: Explanation, **more: Any) -> Divergence:
    """Return the divergence of two sides, of which the second one deviates unless `more` says otherwise."""
    peers, culprits = vote.sides[:2]
    fields: dict[str, Any] = {"culprits": culprits, "tie": False} | more
    return Divergence(vote, peers[0], culprits[0], majority, minority, explanation, **fields)


def unknown(key: GroupKey, seq: int) -> Call:
    """Return a call of which only its position is known; without a position, it stands for no call."""
    return Call(key, seq, Described(Wire("", (), ()), "a collective" if seq else ""), True, None)


def made_alone(sides: tuple[tuple[int, ...], tuple[int, ...]], last: Call, call: Call, **more: Any) -> Divergence:
    """Return the divergence of few ranks that wait in a call, while the first side made none after `last`."""
    explanation = Explanation("insert", "within", (call,), (support("others agree outside"),))
    return stated(Vote(call.key, call.seq, sides), last, call, explanation, ended="majority", **more)


def outside_backward(
    vote: Vote, reduction: Call, outside: Call, *, came_later: bool, majority_goes_on: bool = True
) -> Divergence | None:
    """Explain a call that one side made while the other is in backward; return None if the loop may contain it.

    `reduction` is the call in which one side waits during backward, `outside` the other side's call. `came_later` says
    whether the side in backward reached that call afterwards, `majority_goes_on` whether it is the larger side.
    """
    if came_later:
        either = Explanation("insert", "after", (reduction, outside), (position("peers came later"),))
        return stated(vote, reduction, outside, either)
    # A ring keeps the innermost line only. It is compared with the other call's line in the same function, if its stack
    # has one, else with the other call's innermost line.
    site = outside.site or Frame("", 0, "")
    inside = site.file, site.function.rpartition(".")[2]
    shared = [at for at, line in enumerate(reduction.stack) if (line.file, line.function) == inside]
    further_in, own = reduction.stack[: shared[0]] if shared else (), reduction.stack[shared[0] if shared else 0]
    loop_call = replace(reduction, stack=(*further_in, replace(own, function=site.function) if shared else own))
    explanation = left_loop(outside, loop_call, [loop_call], majority_goes_on=majority_goes_on)
    sides = (reduction, outside) if majority_goes_on else (outside, reduction)
    return None if explanation is None else stated(vote, *sides, explanation)


def misfit(pair: Misfit[Call]) -> Divergence:
    """Return the divergence of a send and a receive that match except for their sizes in bytes."""
    sent, taken = pair.calls
    both = tuple(sorted((pair.receiver, pair.sender)))
    vote = Vote(sent.key, sent.seq, ((pair.receiver, pair.sender),))
    explanation = Explanation("change", "within", (taken, sent), (support("whole programs"),))
    sides = (pair.receiver, pair.sender, taken, sent)
    return Divergence(vote, *sides, explanation, both, tie=False, payload=(pair.sent, pair.expected))


def is_for_one_rank(divergence: Divergence) -> bool:
    """Whether the source makes the minority's call conditional on one rank, so that no peer makes it in any group.

    All peers must wait in one call outside of branches: ranks with a branch each may use their groups in any order.
    """
    calls = divergence.majority, divergence.minority
    selects_one_rank = divergence.explanation.terms[0].name == "source one rank" and len(divergence.vote.sides) == 2
    return selects_one_rank and not (in_branch(*calls) or source_branches(*calls))


def by_lines(divergence: Divergence, majority: Counters, minority: Counters, *, default_group: bool) -> Divergence:
    """Refine a divergence that was found from the lines at which the ranks of a running job wait.

    The values of the loop variables distinguish a loop that was left early from one in which a call was left out: a
    rank after the loop with the same values, if the loop has no `break` or `return`, left out a call. The lines can be
    compared if all wait in the `default_group`, that of all ranks.
    """
    explanation = divergence.explanation
    if is_for_one_rank(divergence) and not default_group:
        return replace(divergence, groups_known=False)
    if explanation.terms[0].name in _GUESSES or not default_group:
        any_call = (position("any call"),)
        either = Explanation("insert", "within", (divergence.minority,), any_call, alternatives=("fewer_iterations",))
        return replace(divergence, explanation=either)
    if divergence.kind != "fewer_iterations":
        return divergence
    for left, right in zip(divergence.majority.stack[::-1], divergence.minority.stack[::-1], strict=False):
        place = left.file, left.function
        if place != (right.file, right.function):
            break
        names, early = source_text.loop_variables(left.file, (left.line, right.line), divergence.majority.created_s)
        majority_values, minority_values = majority.get(place, {}), minority.get(place, {})
        shared = [name for name in names if name in majority_values and name in minority_values]
        if any(majority_values[name] != minority_values[name] for name in shared):
            return divergence
        if shared and not early:
            left_out = replace(explanation, deviation="drop", place="within", calls=(divergence.majority,))
            return replace(divergence, explanation=left_out)
    return replace(divergence, explanation=replace(explanation, terms=(support("past that line"),)))
