"""Divergences for which one call per rank is known: from a running job, logs, waits, sizes or roots that differ."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.evidence_terms import GUESSES, position, support
from diagnostics.analysis.divergence.explanation import Deviation, Explanation, Place, left_loop
from diagnostics.analysis.divergence.find import Divergence, edited, explained
from diagnostics.analysis.divergence.identity import in_backward, same_statement
from diagnostics.analysis.divergence.loop_exit import conditions, source_branches
from diagnostics.analysis.histories.printed import of_messages
from diagnostics.analysis.observations import Counters, loop_rounds
from diagnostics.analysis.pairwise import Misfit
from diagnostics.analysis.vote import Vote, count_votes, settled
from diagnostics.contract.findings import LIKELY, OPEN, POSSIBLE, PROBABLE, WATCHDOGS
from diagnostics.evidence.calls import Call, Described, GroupKey, Wire
from diagnostics.evidence.model import Frame

_MOST_RANKS = 64  # All pairs of rank and root are tried, which is quadratic in the size.


def unknown(key: GroupKey, seq: int) -> Call:
    """Return a call of which only its position is known; without a position, it stands for no call."""
    return Call(key, seq, Described(Wire("", (), ()), "a collective" if seq else ""), True, None)


def made_alone(
    waiting: Sequence[int], others: Sequence[int], last: Call, call: Call, members: Iterable[int] = (), *,
    past: Place | None = None, **more: Any,
) -> Divergence | None:  # fmt: skip
    """Return the divergence of few ranks that wait in a call, while the others agree and made none after `last`.

    Return None if these are not most of the `members`: then they are late. `past`: where these passed its line.
    """
    at = call.key, call.seq
    vote = count_votes(*at, dict.fromkeys(waiting, True) | dict.fromkeys(others, False), members)
    if not vote.has_majority or others[0] not in vote.sides[0]:
        return None
    vote, alone = settled(at, others, waiting), support("peers past that line" if past else "others agree outside")
    return edited(vote, (last, call), ("insert", past or "within"), alone, ended="majority", **more)


def passed(vote: Vote, ranks: Sequence[int], expected: Call, pending: Call, **more: Any) -> Divergence:
    """Return the divergence of `ranks`, past the line at which the others of the vote wait in `expected`.

    They left that call out. If they are the majority, the others added it. They wait in `pending` now.
    """
    past, peers = support("past that line"), next(side for side in vote.sides if ranks[0] not in side)
    if ranks[0] in vote.sides[0] and not vote.tie:
        return edited(vote, (pending, expected), ("insert", "within"), past, limit=PROBABLE, **more)
    vote = replace(vote, sides=(peers, tuple(ranks)))
    return edited(vote, (expected, pending), ("drop", "within"), past, **more)


def outside_backward(
    inside: Sequence[int], outside: Sequence[int], reduction: Call, call: Call, *, came_later: bool
) -> Divergence | None:
    """Explain a call that ranks made while others are in backward; return None if the loop may contain it.

    `reduction` is the call in which the ranks `inside` wait during backward, `call` that of the ranks `outside`.
    `came_later` says whether the side in backward reached that call afterwards.
    """
    goes_on = len(inside) >= len(outside)
    vote = settled((call.key, call.seq), *((inside, outside) if goes_on else (outside, inside)))
    if came_later:
        return edited(vote, (reduction, call), ("insert", "after"), position("peers came later"))
    # A ring keeps the innermost line only. It is compared with the other call's line in the same function, if its stack
    # has one, else with the other call's innermost line.
    site = call.site or Frame("", 0, "")
    place = site.file, site.function.rpartition(".")[2]
    shared = [at for at, line in enumerate(reduction.stack) if (line.file, line.function) == place]
    further_in, own = reduction.stack[: shared[0]] if shared else (), reduction.stack[shared[0] if shared else 0]
    loop_call = replace(reduction, stack=(*further_in, replace(own, function=site.function) if shared else own))
    explanation = left_loop(call, loop_call, [loop_call], majority_goes_on=goes_on)
    sides = (reduction, call) if goes_on else (call, reduction)
    return None if explanation is None else explained(vote, sides, explanation)


def at_places(
    vote: Vote, places: Mapping[int, tuple[str, Frame]], own_bytes: Mapping[int | None, int] | None = None, **more: Any
) -> Divergence:
    """Return the divergence of two sides of which only the operation and the line of each rank are known, and maybe
    the size of its messages. Two lines of the program are two calls.
    """
    calls = []
    for side in vote.sides[:2]:
        op, site = places[side[0]]
        sizes = {own_bytes[rank] for rank in side if rank in own_bytes} if own_bytes else ()
        described = of_messages(op, sizes.pop()) if len(sizes) == 1 else Described(Wire(op, (), ()), op)
        calls.append(Call(vote.key, 0, described, False, None, stack=(site,)))
    deviation: Deviation = "change" if same_statement(*calls) else "substitute"
    more |= {"groups_known": False, "limit": WATCHDOGS["apart"]}
    return edited(vote, (calls[0], calls[1]), (deviation, "within"), support("single position"), **more)


def misfit(pair: Misfit[Call]) -> Divergence:
    """Return the divergence of a send and a receive that match except for their sizes in bytes."""
    sent, taken = pair.calls
    ends, payload = (pair.receiver, pair.sender), (pair.sent, pair.expected)
    vote, term = count_votes(sent.key, sent.seq, dict.fromkeys(ends)), support("whole programs")
    return edited(vote, (taken, sent), ("change", "within"), term, ranks=ends, culprits=vote.present, payload=payload)


def is_for_one_rank(divergence: Divergence) -> bool:
    """Whether the source makes the minority's call conditional on one rank, so that no peer makes it in any group.

    All peers must wait in one call outside of branches: ranks with a branch each may use their groups in any order.
    """
    calls = divergence.majority, divergence.minority
    selects_one_rank = divergence.explanation.terms[0].name == "source one rank" and len(divergence.vote.sides) == 2
    return selects_one_rank and not (conditions(*calls) or source_branches(*calls))


def same_round(stack: Iterable[Frame], when_s: float | None, ranks: Sequence[Counters]) -> bool:
    """Whether all ranks are in one round of every loop around the lines of a stack, by the loops' variables."""
    for at in stack:
        if source_text.place(at.file, [at.line], at.line, when_s) != "no loop":
            rounds = loop_rounds(at, when_s, ranks)
            if all(values[0] is None for values in rounds) or any(len({*values}) > 1 for values in rounds):
                return False
    return True


def by_lines(divergence: Divergence, majority: Counters, minority: Counters, *, default_group: bool) -> Divergence:
    """Refine a divergence that was found from the lines at which the ranks of a running job wait.

    A backward pass comes after the forward pass of its round, even if one line runs both. The values of the loop
    variables distinguish a loop that was left early from one in which a call was left out: a rank after the loop with
    the same values, if the loop has no `break` or `return`, left out a call. The lines can be compared if all wait in
    the `default_group`, that of all ranks.
    """
    explanation, calls = divergence.explanation, (divergence.majority, divergence.minority)
    line = min((call.stack for call in calls), key=len)  # The forward pass runs functions of the user's.
    passes = {call.region for call in calls if call.stack[-len(line) :] == line}
    both = default_group and passes == {"forward", "backward"}
    if both and same_round(line, calls[0].created_s, (majority, minority)):
        sides = (divergence.majority_rank, calls[0]), (divergence.minority_rank, calls[1])
        (ahead, done), (behind, call) = sorted(sides, key=lambda side: not in_backward(side[1]))
        if divergence.tie or divergence.minority_rank == behind:
            more: dict[str, Any] = {"ranks": (ahead, behind), "culprits": divergence.vote.side_of(behind), "tie": False}
            return edited(divergence.vote, (done, call), ("insert", "within"), support("forward twice"), **more)
        return replace(divergence, explanation=Explanation("drop", "within", (call,), (support("past that line"),)))
    if is_for_one_rank(divergence) and not default_group:
        return replace(divergence, groups_known=False)
    if explanation.terms[0].name in GUESSES or not default_group:
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


def differing_roots(calls: Mapping[int, Call], members: tuple[int, ...]) -> Divergence:
    """Return the divergence of ranks that name different roots; `calls` are those of the ranks that hang in one call.

    If all members hang, those that named another root than most deviate; else see `deviating_rank`.
    """
    first, roots = next(iter(calls.values())), {rank: call.wire.root for rank, call in calls.items()}
    at, named = (first.key, first.seq), {rank: root for rank, root in roots.items() if root is not None}
    vote = count_votes(*at, roots)
    deviating = vote.minority if vote.has_majority and len(vote.present) == len(members) else ()
    if len(vote.present) < len(members) and (named or first.wire.op == "broadcast"):
        deviating = tuple(filter(None, [deviating_rank(members, tuple(calls), named)]))  # Never the first member.
    culprits = deviating or tuple(calls)
    if len(vote.sides) == 1:
        vote = settled(at, [rank for rank in members if rank not in culprits], culprits)
    sides = sorted(vote.sides, key=lambda side: (not set(deviating).isdisjoint(side), -len(side), side))
    majority, minority = (calls.get(side[0], first) for side in sides[:2])
    # A broadcast that completed on some ranks only may also mean that a link failed. If none completed it, the roots
    # were read from the ranks, but not how many calls they had made before.
    limit = OPEN if not deviating else POSSIBLE if len(calls) < len(members) else LIKELY
    more: dict[str, Any] = {"culprits": culprits, "tie": not deviating, "groups_known": first.seq > 0, "limit": limit}
    vote, term = replace(vote, sides=tuple(sides)), support("same line")
    return edited(vote, (majority, minority), ("change", "within"), term, **more)


def deviating_rank(
    members: tuple[int, ...], waiting: tuple[int, ...], named: Mapping[int, int] | None = None
) -> int | None:
    """Return the rank that passed a root other than the first member, if this leaves exactly `waiting` stuck.

    The others are assumed to use the first member as root, which is by far the most common; `named` are roots that are
    known. Without a unique answer, the result is None.
    """
    size = len(members)
    if not 2 < size <= _MOST_RANKS:
        return None
    stuck = {members.index(rank) for rank in waiting if rank in members}
    root_at = {members.index(rank): members.index(root) for rank, root in (named or {}).items()}
    candidates = {
        members[deviating]
        for deviating in range(1, size)
        for root in range(1, size)
        if all((root if rank == deviating else 0) == at for rank, at in root_at.items())
        if stuck_ranks([root if rank == deviating else 0 for rank in range(size)]) == stuck
    }
    return candidates.pop() if len(candidates) == 1 else None


def stuck_ranks(roots: list[int]) -> set[int]:
    """Return the ranks that never leave gloo's tree if rank i uses `roots[i]` as the root; dumps record no roots."""
    plans = [_steps(rank, root, len(roots)) for rank, root in enumerate(roots)]
    moved = True
    while moved:
        moved = False
        for rank, plan in enumerate(plans):
            for sends, peer in plan[:1]:
                if plans[peer][:1] == [(not sends, rank)]:
                    moved = bool(plan.pop(0) and plans[peer].pop(0))
    return {rank for rank, plan in enumerate(plans) if plan}


def _steps(rank: int, root: int, size: int) -> list[tuple[bool, int]]:
    """Return the steps of a rank in the tree as (whether it sends, peer)."""
    virtual = (rank - root) % size
    bits = (1 << level for level in range(max(1, (size - 1).bit_length())))
    peers = ((bit, virtual ^ bit) for bit in bits if virtual < 2 * bit)
    return [(not virtual & bit, (peer + root) % size) for bit, peer in peers if peer < size]
