"""Compares complete programs of ranks, for which every call to the end is known: those of simulated ranks, and those of
ranks that ended in order while others wait.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence.evidence_terms import Term, support
from diagnostics.analysis.divergence.explanation import Deviation, Explanation, Place
from diagnostics.analysis.divergence.find import Divergence, edited, explained
from diagnostics.analysis.divergence.identity import agree, in_backward, on_path, shared_path, within
from diagnostics.analysis.divergence.sequences import predict
from diagnostics.analysis.vote import OF_JOB, count_votes, is_majority, is_minority, settled, supported
from diagnostics.contract.findings import LIKELY, POSSIBLE, PROBABLE, SEEN
from diagnostics.evidence.calls import Call, GroupKey, Wire
from diagnostics.evidence.model import Frame

LONGEST = 800  # Calls compared after the first difference; time and memory are quadratic (800 calls: 0.4 s, 5 MiB).
_ROUNDS = 2  # Whole rounds needed to identify a loop.
_DROP, _OTHER_LINE, _OTHER_ARGUMENTS = 10, 10, 11
"""Costs. An equal call from another line, as of two branches of an `if`, costs less than a drop and an insertion."""
_NEVER = 1 << 40  # Larger than any sum of costs over LONGEST calls, so such a pair is never aligned.


class PathCall(NamedTuple):
    """A call in a form that is equal on all ranks that make it: its group, its arguments and its path."""

    group: str
    """A name that is the same on all ranks, even if each rank is in a different group of that kind."""
    wire: Wire
    """Arguments; the root is numbered within the group."""
    stack: tuple[Frame, ...]


class Change(Struct, frozen=True):
    """A run of calls that only one history has, or that the other one has with different arguments."""

    kind: Literal["drop", "insert", "arguments"]
    majority_at: int
    """Index in the majority's history of the first call of the run, or of its next call if it lacks the run."""
    minority_at: int
    """The same in the minority's history."""
    count: int

    @property
    def end(self) -> tuple[int, int]:
        """Indices in the majority's and the minority's history after the run."""
        dropped, inserted = (self.kind != "insert") * self.count, (self.kind != "drop") * self.count
        return self.majority_at + dropped, self.minority_at + inserted


def align(majority: Sequence[PathCall], minority: Sequence[PathCall]) -> list[Change]:
    """Align two histories at the least cost and return the changes in order; equal calls from other lines are none.

    These are complete; `sequences.smallest_edit` compares what recorders kept.
    """
    start = 0
    while start < min(len(majority), len(minority)) and majority[start] == minority[start]:
        start += 1
    left, right = majority[start : start + LONGEST], minority[start : start + LONGEST]
    whole = len(left) + start == len(majority) and len(right) + start == len(minority)
    # costs[i][j]: from left[i] and right[j] to the ends; if a list was truncated, the rest of the other one is free.
    rest = _DROP if whole else 0
    costs = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    costs[-1] = [rest * (len(right) - j) for j in range(len(right) + 1)]
    for i in range(len(left) - 1, -1, -1):
        row, below, call = costs[i], costs[i + 1], left[i]
        row[-1] = rest * (len(left) - i)
        for j in range(len(right) - 1, -1, -1):
            match = below[j + 1] if call == right[j] else below[j + 1] + _cost(call, right[j])
            row[j] = min(match, below[j] + _DROP, row[j + 1] + _DROP)
    steps: list[tuple[str, int, int]] = []
    i = j = 0
    while (i < len(left) or j < len(right)) if whole else (i < len(left) and j < len(right)):
        both = i < len(left) and j < len(right)
        if both and costs[i][j] == _cost(left[i], right[j]) + costs[i + 1][j + 1]:
            same = left[i].group == right[j].group and agree(left[i].wire, right[j].wire)
            steps.append(("same" if same else "arguments", i, j))
            i, j = i + 1, j + 1
        elif j < len(right) and costs[i][j] == _DROP + costs[i][j + 1]:
            steps.append(("insert", i, j))
            j += 1
        else:
            steps.append(("drop", i, j))
            i += 1
    runs = [(kind, list(run)) for kind, run in groupby(steps, key=itemgetter(0)) if kind != "same"]
    return [Change(kind, start + run[0][1], start + run[0][2], len(run)) for kind, run in runs]  # type: ignore[arg-type]


def _cost(first: PathCall, second: PathCall) -> int:
    if first == second:
        return 0
    if first[:2] == second[:2]:
        return _OTHER_LINE
    return _OTHER_ARGUMENTS if first.stack == second.stack and first.wire.op == second.wire.op else _NEVER


MOST_PROGRAMS = 9  # With more different programs than these, each rank does something of its own: no comparison.


class Program(Struct, frozen=True, dict=True):
    """The complete program of ranks that make the same calls."""

    ranks: tuple[int, ...]
    calls: tuple[Call, ...]
    """All collectives of the first of these ranks, oldest first."""
    members: Mapping[GroupKey, tuple[int, ...]]
    """Group -> global ranks of its members."""
    iterations: int
    """Number of steps that were begun."""

    @cached_property
    def paths(self) -> tuple[PathCall, ...]:
        """The calls in a form that can be compared across ranks."""
        paths = []
        for call in self.calls:
            ranks = self.members[call.key]
            is_named = call.key.label != call.key.name
            label = f"{call.key.label} {len(ranks)}" if is_named else call.key.name
            paths.append(PathCall(label, within(call.wire, ranks), call.stack))
        return tuple(paths)


def compare_programs(programs: Iterable[Program], steps: int = 0) -> Divergence | None:
    """Return the first difference between the programs of all ranks that consists of dropped or inserted calls.

    None if the programs are equal, are more than `MOST_PROGRAMS` or have no majority (unless the job has 2 ranks), or
    if the difference is of another kind. `steps` is the requested number of iterations, which shows which of two
    equally large sides is right, unless one began more; 0 = unknown.
    """
    different: dict[tuple[object, ...], Program] = {}
    of_rank: dict[int, Program] = {}
    for program in sorted(programs, key=lambda program: program.ranks):
        same = different.setdefault((program.paths, program.iterations), program)
        of_rank |= dict.fromkeys(program.ranks, same)
    vote = count_votes(OF_JOB, 0, {rank: same.ranks for rank, same in of_rank.items()})
    if not 1 < len(vote.sides) <= MOST_PROGRAMS:
        return None
    most = max(of_rank[side[0]].iterations for side in vote.sides if len(side) == len(vote.sides[0]))
    vote = supported(vote, [of_rank[side[0]].iterations == most == steps for side in vote.sides])
    majority, *others = (replace(of_rank[ranks[0]], ranks=ranks) for ranks in vote.sides)
    if vote.tie and len(vote.present) > 2:
        return None
    compared = [result for side in others if (result := _compare(majority, side, tie=vote.tie)) is not None]
    if not compared:
        return None
    first = min(compared, key=lambda result: (result[0], result[1].culprits))[1]
    lines = first.kind, first.majority.site, first.minority.site
    same_lines = [other for _, other in compared if (other.kind, other.majority.site, other.minority.site) == lines]
    culprits = tuple(sorted(rank for divergence in same_lines for rank in divergence.culprits))
    stop_early = all(of_rank[rank].iterations < majority.iterations == steps for rank in culprits)
    if not (is_minority(len(culprits), len(vote.present)) or vote.tie or vote.settled or stop_early):
        return None
    right = sorted({*vote.present} - {*culprits})
    vote = settled((first.vote.key, first.vote.position), right, culprits, or_tie=vote.tie)
    return replace(first, culprits=vote.minority, vote=vote, tie=vote.tie)


def _compare(majority: Program, minority: Program, *, tie: bool) -> tuple[int, Divergence] | None:
    """Return the index in the majority's program at which `minority` differs, and how; None for other differences."""
    changes = align(majority.paths, minority.paths)
    if not changes or not majority.calls or not minority.calls:
        return None
    first = changes[0]
    if majority.iterations != minority.iterations:
        if tie:  # Which of the two numbers of iterations is right is not known here.
            return None
        deviation: Deviation = "drop" if minority.iterations < majority.iterations else "insert"
        return _divergence(deviation, "round", first, majority, minority)

    def run(change: Change) -> tuple[PathCall, ...]:
        side, start = (minority, change.minority_at) if change.kind == "insert" else (majority, change.majority_at)
        return side.paths[start : start + change.count]

    # Calls in another order, or one in place of another, appear as a drop in one place and an insertion in another.
    is_replaced = any((change.majority_at, change.minority_at) == first.end for change in changes[1:2])
    is_moved = any(change.kind != first.kind and run(change) == run(first) for change in changes[1:])
    if first.kind == "arguments" or is_replaced or is_moved:
        return None
    expected = majority.calls[min(first.majority_at, len(majority.calls) - 1)]
    if first.kind == "drop" and in_backward(expected):
        if expected.wire.op == "all_reduce":
            return None  # DDP raises an error on that rank, which says more than the calls do.
        return _divergence("drop", "backward", first, majority, minority)
    side, peers, start = (
        (minority, majority, first.minority_at) if first.kind == "insert" else (majority, minority, first.majority_at)
    )
    whole = not tie and _whole_rounds(side, start, first.count, peers)
    return _divergence(first.kind, "round" if whole else "within", first, majority, minority)


def _whole_rounds(side: Program, start: int, count: int, peers: Program) -> bool:
    """Whether the run is additional rounds of a loop: next to equal calls, and made up of whole passes of the peers."""
    run = side.paths[start : start + count]
    size = next(size for size in range(1, count + 1) if run == (run[:size] * count)[:count])
    if run[:size] not in (side.paths[max(0, start - size) : start], side.paths[start + count : start + count + size]):
        return False
    # A pass (for example a forward) is the calls of one step and region or, if no regions are known, of one line of the
    # loop that they come from.
    repeated = {path.stack for path, times in Counter(peers.paths).items() if times > 1}
    depth = len(shared_path(stack[::-1] for stack in repeated))
    places = [(call.step, call.region or call.stack[::-1][depth : depth + 1]) for call in peers.calls]
    numbers = (list(group) for _, group in groupby(range(len(places)), places.__getitem__))
    passes, at = {tuple(peers.paths[n] for n in group) for group in numbers}, 0
    while at < count:
        fitting = [len(calls) for calls in passes if run[at : at + len(calls)] == calls]
        if not fitting:
            return False
        at += max(fitting)
    return True


def _divergence(
    deviation: Deviation, place: Place, change: Change, majority: Program, minority: Program
) -> tuple[int, Divergence]:
    expected_at = min(change.majority_at, len(majority.calls) - 1)
    expected = _at_own_line(majority.calls[expected_at], minority.paths)
    got_at = min(change.minority_at, len(minority.calls) - 1)
    got = _at_own_line(minority.calls[got_at], majority.paths)
    calls: tuple[Call, ...] = (expected, got)
    if place != "round":
        side, start, first = (minority, got_at, got) if deviation == "insert" else (majority, expected_at, expected)
        calls = (first, *side.calls[start + 1 : start + change.count])
    key = expected.key if deviation == "drop" and place != "round" else got.key
    explanation = Explanation(deviation, place, calls, (support("whole programs"),), aligned=True)
    return expected_at, explained(
        settled((key, got.seq), majority.ranks, minority.ranks),
        (expected, got),
        explanation,
        whole=True,
        ended="minority" if change.minority_at >= len(minority.calls) else "",
        iterations=(minority.iterations, majority.iterations) if place == "round" else None,
    )


def _at_own_line(call: Call, others: Sequence[PathCall]) -> Call:
    passed = {frame for path in others for frame in path.stack}
    own = next((frame for frame in call.stack if frame not in passed), call.site)
    return replace(call, stack=(own,)) if own is not None else call


class WithinRound(Struct, frozen=True):
    """A rank whose calls end within a round of its peers' loop."""

    rank: int
    size: int
    """Number of calls in one round."""
    over: int
    """Calls that it made in the round in which it ended."""


def made_more(
    ended: Sequence[int], waiting: Sequence[int], all_shorter: list[Call], longer: list[Call], by: int
) -> Divergence | None:
    """Return the divergence of ranks that wait after `by` calls that those that ended in order never made.

    `all_shorter` are the calls of those that ended and `longer` those of the ranks that wait, all in one group. A call
    from a line that no ended rank reached, after which all calls match again, is an extra call.
    """
    start = max(longer[0].seq, all_shorter[0].seq) if longer and all_shorter else 0
    longer, shorter = ([call for call in calls if call.seq >= start] for calls in (longer, all_shorter))
    if not shorter or len(longer) != len(shorter) + by or not all(call.stack for call in (*longer, *shorter)):
        return None
    short, long = ([PathCall(call.key.name, call.wire, call.stack) for call in calls] for calls in (shorter, longer))
    changes = align(short, long)
    if [(change.kind, change.count) for change in changes] != [("insert", by)]:
        return None
    at = changes[0].minority_at
    exited_call, extra = shorter[min(at, len(shorter) - 1)], tuple(longer[at : at + by])
    agreeing, alone, is_new = len(short) - at, len(waiting) < len(ended), long[at] not in set(short)
    vote = settled((extra[0].key, extra[0].seq), ended, waiting)

    def missed(place: Literal["within", "round"], term: Term, limit: float) -> Divergence:
        return edited(vote, (exited_call, extra[0]), ("insert", place), term, run=extra, ended="majority", limit=limit)

    rest = long[:at] + long[at + by :]
    # Calls from a line whose earlier calls fitted those of other lines only by chance? So it is when DDP sends its
    # buffers in the first forward pass after a step: in rank 0's evaluation, or in the others' next step.
    if fits := [call for call, met in zip(rest, short, strict=True) if call != met]:
        by_chance = fits.count(long[at + by - 1])
        if not (is_new and by_chance) or is_majority(len(fits), len(short)):  # No shared path: not comparable.
            return None
        return missed("within", support("made alone", by_chance), LIKELY)
    if is_new and (agreeing or alone):
        term = support("later calls agree", agreeing) if agreeing else support("ended in order")
        return missed("within", term, SEEN if agreeing else PROBABLE)
    if not alone or agreeing:
        return None
    # The exited ranks made rounds of equal calls, and the extra call starts another one.
    prediction = predict([on_path(call) for call in all_shorter], on_path(extra[0]))
    return missed("round", support("ended in order"), POSSIBLE) if prediction is not None and prediction.whole else None


def ended_in_round(
    rank: int, ahead: Sequence[int], calls: list[Call], pending: Call
) -> Divergence | WithinRound | None:
    """Return where in its peers' loop a rank ended that made `calls`, while those ahead wait in `pending`."""
    tokens = [on_path(call) for call in calls]
    prediction = predict(tokens, on_path(pending))
    if prediction is None or not prediction.whole:
        return None
    size = prediction.round
    start = len(tokens) - size
    while start > 0 and tokens[start - 1] == tokens[start - 1 + size]:
        start -= 1
    whole, over = divmod(len(tokens) - start, size)
    # No round begins where the calls begin to repeat if the record has lost its beginning, or if the first round
    # differs in part, as DDP's does: then the calls before come from the same lines.
    lines = {call.stack for call in calls[start : start + size]}
    opens = calls[start - 1].stack not in lines if start else calls[0].seq == 1
    if whole < _ROUNDS or (size > 1 and not opens):
        return None
    if over:
        return WithinRound(rank, size, over)
    # Two calls with known lines repeat in a loop; one may do so otherwise.
    limit = 1.0 if calls[-1].site is not None and size > 1 else POSSIBLE
    vote, term = settled((pending.key, pending.seq), ahead, (rank,)), support("between two rounds", whole)
    return edited(vote, (pending, calls[-1]), ("drop", "round"), term, ended="minority", limit=limit)
