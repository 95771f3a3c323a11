"""Compares ranks that run the same program in groups of their own, as the pairs of tensor parallelism do.

A group of two has no majority, and a rank that waits in one group while its peers wait in another differs in none. But
other ranks play the same role: up to the fault they made the same calls in groups of the same kind, in the same order.
Their next call shows who deviates.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence.find import Divergence, between
from diagnostics.analysis.divergence.identity import within
from diagnostics.analysis.divergence.sequences import predict
from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.vote import OF_JOB, count_votes, settled
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import Call, GroupKey, Wire

MOST_RANKS = 256  # Ranks whose files are read again; of a larger job those that the caller names first.
_LONGEST = 2048  # Last calls compared: torch's recorder keeps 2,000 by default.
HistoryOf = Callable[[int, str], list[Call]]  # One rank's calls of all groups by a recorder, in the order made.
_Group = tuple[str, int, int]
"""Label and size of a group, and which of the rank's own groups with that label and size it is."""


class _Token(NamedTuple):
    """A call in a form that is equal on all ranks of a role."""

    group: _Group
    wire: Wire
    peer: int | None
    """Of a message: distance to the peer within the group."""


class _Program(Struct, frozen=True):
    """The last calls of one rank, from the point at which the records of all ranks have begun."""

    rank: int
    calls: Sequence[Call]
    tokens: Sequence[_Token]


def find(survey: Survey, history_of: HistoryOf, recorder: str, among: Iterable[int]) -> Divergence | None:
    """Return the first call in which ranks deviate from the majority of their role; None if there is none.

    `history_of` reads a rank's own calls by the `recorder` again; `among` are the ranks, the most important ones first.
    """
    recorded = (rank for rank in among if rank in survey.ranks and recorder in survey.ranks[rank].recorders)
    ranks = sorted(islice(dict.fromkeys(recorded), MOST_RANKS))
    histories = {rank: history_of(rank, recorder)[-_LONGEST:] for rank in ranks}
    tokens = {rank: [*_tokens(survey, rank, calls)] for rank, calls in histories.items() if calls}
    deviations = _deviations(survey, [*_from_common_start(histories, tokens)])
    return min(deviations, key=lambda case: case.time_s, default=None)


def _tokens(survey: Survey, rank: int, calls: Sequence[Call]) -> Iterator[_Token]:
    names: dict[GroupKey, _Group] = {}
    places: dict[GroupKey, dict[int, int]] = {}
    kinds: Counter[tuple[str, int]] = Counter()
    for key in sorted({call.key for call in calls}, key=lambda key: (len(key.name), key.name)):
        members = survey.members(key)
        kind = (key.desc, len(members))
        names[key], places[key] = (*kind, kinds[kind]), {member: place for place, member in enumerate(members)}
        kinds[kind] += 1
    for call in calls:
        place, wire = places[call.key], within(call.wire, survey.members(call.key))
        peer = place.get(call.peer, -1) - place.get(rank, 0) if call.p2p and call.peer is not None else None
        yield _Token(names[call.key], wire._replace(op=call.p2p) if call.p2p else wire, peer)


def _from_common_start(histories: Mapping[int, list[Call]], tokens: Mapping[int, list[_Token]]) -> Iterator[_Program]:
    """Yield the programs from the first collective that is in the records of all ranks, in a group that all have."""
    places: dict[int, dict[tuple[_Group, int], int]] = {}
    for rank, in_order in tokens.items():
        numbered = enumerate(zip(histories[rank], in_order, strict=True))
        places[rank] = {(token.group, call.seq): at for at, (call, token) in numbered if not call.p2p}
    starts = grouped((group, seq) for own in places.values() for group, seq in dict(reversed(own)).items())
    firsts = [(group, max(seqs)) for group, seqs in sorted(starts.items()) if len(seqs) == len(tokens)]
    common = [first for first in firsts if all(first in own for own in places.values())]
    first = min(common, key=lambda first: sum(own[first] for own in places.values()), default=None)
    if first is not None:
        for rank, own in places.items():
            yield _Program(rank, histories[rank][own[first] :], tokens[rank][own[first] :])


def _deviations(survey: Survey, programs: list[_Program]) -> Iterator[Divergence]:
    """Yield the deviation of each role.

    Roles differ in every round, so they part in the first half of the record, or at a call that no earlier round had. A
    rank that deviates stops its peers in the same round, or in one of the next, so it parts in the second half.
    """
    roles = [(programs, 0)]
    while roles:
        role, at = roles.pop()
        while len(role) > 1:
            role = [program for program in role if at < len(program.tokens)]
            sides = grouped((program.tokens[at], program) for program in role)
            if len(sides) > 1:
                rest = max(len(program.tokens) for program in role) - at
                if at < rest or all(predict(role[0].tokens[:at], token) is None for token in sides):
                    roles += [(side, at + 1) for side in sides.values()]
                    break
                vote = count_votes(OF_JOB, at, {program.rank: program.tokens[at] for program in role})
                if vote.tie and len(vote.sides[0]) > 1:
                    break
                majority = [program for program in role if program.rank in vote.sides[0]]
                if (divergence := _deviation(survey, majority, role, at)) is not None:
                    yield divergence
                    break
                role = majority  # The others made a call of their own, each with its whole group.
            at += 1


def _deviation(survey: Survey, majority: list[_Program], role: list[_Program], at: int) -> Divergence | None:
    """Return the deviation of the ranks that share a group with a rank of the majority: that group is broken."""
    of_majority = {program.rank: program for program in majority}
    pairs = [(program, _peer(survey, program, of_majority, at)) for program in role if program.rank not in of_majority]
    deviating = [(program, peer) for program, peer in pairs if peer is not None]
    if not deviating:
        return None
    minority, peer = deviating[0]
    right, apart = {peer.rank: peer} | of_majority, [program.rank for program, _ in deviating]
    both = {program.rank: program for program in (peer, minority)}
    copies = dict[int, list[Call]]()
    for rank, program in both.items():  # Numbered over all groups, so that their calls are compared like one group's.
        own = enumerate(zip(program.calls, program.tokens, strict=True), 1)
        copies[rank] = [replace(call, seq=n, described=call.described._replace(wire=at.wire)) for n, (call, at) in own]
    case = between(settled((peer.calls[at].key, at + 1), right, apart, or_tie=True), lambda rank, _: copies[rank])
    if case is None:
        return None
    originals = {id(copy): call for rank in both for copy, call in zip(copies[rank], both[rank].calls, strict=True)}
    expected, got = originals[id(case.majority)], originals[id(case.minority)]
    in_order = case.explanation.deviation not in {"change", "substitute", "swap"} and expected.stack != got.stack
    if expected.key != got.key and not in_order:
        return None  # Calls of two groups in another order, maybe by one line: the cycle of waits shows it.
    turned = expected.key != got.key and case.explanation.place != "round"
    turned = turned and _in_one_round(peer.tokens, at, minority.tokens[at])
    calls = tuple(originals[id(call)] for call in case.explanation.calls)
    key = expected.key if case.minority_rank in survey.members(expected.key) else got.key
    vote = settled((key, expected.seq if key == expected.key else got.seq), sorted(right), sorted(apart), or_tie=True)
    explanation = replace(case.explanation, calls=calls)
    return replace(case, vote=vote, majority=expected, minority=got, explanation=explanation, turned=turned)


def _in_one_round(tokens: Sequence[_Token], at: int, other: _Token) -> bool:
    """Return whether the `other` call follows the one `at` in a round of the loop, or may do so in a first round."""
    last = next((n for n in range(at - 1, -1, -1) if tokens[n] == tokens[at]), None)
    if last is None:
        return True
    period = at - last
    # A loop begins where its first round does.
    start = next((n + 1 for n in range(last - 1, -1, -1) if tokens[n] != tokens[n + period]), 0)
    place = (at - start) % period
    return other in tokens[at - period + 1 : at - place]


def _peer(survey: Survey, program: _Program, of_majority: Mapping[int, _Program], at: int) -> _Program | None:
    """Return a program of the majority in the group of the call that the rank made, or of the one that it did not."""
    got = program.calls[at]
    if got.p2p and got.done:
        return None
    of_expected = (peer for peer in of_majority.values() if program.rank in survey.members(peer.calls[at].key))
    of_got = (of_majority[rank] for rank in survey.members(got.key) if rank in of_majority)
    return next(chain(of_expected, of_got), None)
