"""How ranks' whole programs differ, where every call to their very end is known, as of simulated ranks.

A post-mortem knows the calls up to the stall and has to predict the next one. Whole programs decide what is a guess
there: a call that the majority makes at no time is a conditional one, a call that it makes less often belongs to
another number of iterations. Where the difference is neither, nothing is said, and the calls up to the stall decide.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from diagnostics.analysis.divergence.alignment import Change, PathCall, align
from diagnostics.analysis.divergence.evidence_terms import support
from diagnostics.analysis.divergence.explanation import Deviation, Explanation, Place
from diagnostics.analysis.divergence.find import Divergence, Vote
from diagnostics.analysis.divergence.identity import in_backward
from diagnostics.evidence.calls import Call, GroupKey

MOST_PROGRAMS = 9
"""Ranks with more different programs than these are not compared: each does something of its own."""


@dataclass(frozen=True, slots=True)
class Program:
    """All collectives of ranks that call the same, oldest first."""

    ranks: tuple[int, ...]
    calls: tuple[Call, ...]
    """As the first of the ranks makes them."""
    members: Mapping[GroupKey, tuple[int, ...]]
    """Global ranks of its groups."""
    iterations: int
    """Steps that were begun."""

    def path_calls(self) -> tuple[PathCall, ...]:
        """Return the calls in the form that is compared across ranks."""
        found = []
        for call in self.calls:
            ranks = self.members[call.key]
            root = None if call.wire.root is None else ranks.index(call.wire.root)
            named = call.key.label != call.key.name
            label = f"{call.key.label} {len(ranks)}" if named else call.key.name
            found.append(PathCall(label, call.wire._replace(root=root), call.stack))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Side:
    """Ranks with one program."""

    ranks: tuple[int, ...]
    calls: tuple[Call, ...]
    paths: tuple[PathCall, ...]
    iterations: int


def compare_programs(programs: Iterable[Program]) -> Divergence | None:
    """Return the first difference that is a matter of calls dropped or inserted.

    Args:
        programs: of all ranks of the job; several may be equal.

    Returns:
        None when the largest sides are equally large, or when the difference is of another kind.
    """
    sides = _sides(programs)
    if not 1 < len(sides) <= MOST_PROGRAMS:
        return None
    majority = sides[0]
    tie = len(sides[1].ranks) == len(majority.ranks)
    ranks = {rank for side in sides for rank in side.ranks}
    if tie and len(ranks) > 2:
        return None
    found = [one for side in sides[1:] if (one := _compare(majority, side, tie=tie)) is not None]
    if not found:
        return None
    first = min(found, key=lambda one: (one[0], one[1].culprits))[1]
    alike = [one for _, one in found if _kind_and_lines(one) == _kind_and_lines(first)]
    culprits = tuple(sorted(rank for one in alike for rank in one.culprits))
    if tie:
        return replace(first, culprits=tuple(sorted(ranks)), vote=replace(first.vote, sides=(majority.ranks, culprits)))
    if 2 * len(culprits) >= len(ranks):
        return None
    return replace(
        first, culprits=culprits, vote=replace(first.vote, sides=(tuple(sorted(ranks - {*culprits})), culprits))
    )


def _kind_and_lines(divergence: Divergence) -> tuple[object, ...]:
    return divergence.kind, divergence.majority.site, divergence.minority.site


def _sides(programs: Iterable[Program]) -> list[_Side]:
    """Ranks by what they call, the most first."""
    sides: dict[tuple[object, ...], _Side] = {}
    for program in programs:
        paths = program.path_calls()
        known = sides.setdefault((paths, program.iterations), _Side((), program.calls, paths, program.iterations))
        first = known if known.ranks and known.ranks[0] < program.ranks[0] else program
        ranks = tuple(sorted((*known.ranks, *program.ranks)))
        sides[paths, program.iterations] = replace(known, ranks=ranks, calls=first.calls)
    return sorted(sides.values(), key=lambda side: (-len(side.ranks), side.ranks))


def _compare(majority: _Side, minority: _Side, *, tie: bool) -> tuple[int, Divergence] | None:
    """Return where in the majority's program one side differs, and how; None for a difference of another kind."""
    changes = align(majority.paths, minority.paths)
    if not changes or not majority.calls or not minority.calls:
        return None
    first = changes[0]
    if majority.iterations != minority.iterations:
        if tie:  # Which of the two runs the right number is not known; how they ended may say it.
            return None
        return _divergence(
            "drop" if minority.iterations < majority.iterations else "insert", "round", first, majority, minority
        )
    if first.kind == "arguments" or _moved(changes, majority, minority):
        return None
    expected = majority.calls[min(first.at, len(majority.calls) - 1)]
    if first.kind == "drop" and in_backward(expected):
        if expected.wire.op == "all_reduce":
            return None  # DDP itself complains on that rank, which says more than the calls do.
        return _divergence("drop", "backward", first, majority, minority)
    side, peers, start = (minority, majority, first.there) if first.kind == "insert" else (majority, minority, first.at)
    whole = not tie and _repeats(side.paths, start, first.count) and _whole_passes(side, start, first.count, peers)
    return _divergence(first.kind, "round" if whole else "within", first, majority, minority)


def _moved(changes: list[Change], majority: _Side, minority: _Side) -> bool:
    """Whether calls were made in another order, or one in place of another: dropped here, inserted there."""

    def run(change: Change) -> tuple[PathCall, ...]:
        paths, start = (minority.paths, change.there) if change.kind == "insert" else (majority.paths, change.at)
        return paths[start : start + change.count]

    first, *others = changes
    replaced = any((one.at, one.there) == first.end for one in others[:1])
    return replaced or any(one.kind != first.kind and run(one) == run(first) for one in others)


def _repeats(paths: tuple[PathCall, ...], start: int, count: int) -> bool:
    """Whether calls stand beside calls like them, as further rounds of a loop do."""
    run = paths[start : start + count]
    size = next(size for size in range(1, count + 1) if run == (run[:size] * count)[:count])
    return run[:size] in (paths[max(0, start - size) : start], paths[start + count : start + count + size])


def _whole_passes(side: _Side, start: int, count: int, peers: _Side) -> bool:
    """Whether calls are whole passes of what the peers do (a forward, a backward), once or several times."""
    passes = {tuple(paths) for paths in _passes(peers)}
    at, run = 0, side.paths[start : start + count]
    while at < count:
        fitting = [len(one) for one in passes if run[at : at + len(one)] == one]
        if not fitting:
            return False
        at += max(fitting)
    return True


def _passes(side: _Side) -> Iterator[list[PathCall]]:
    """Cut the calls up by step and region; where no regions are known, by the line of the loop that they come from."""
    depth = _shared_frames(side.paths)

    def place(index: int) -> tuple[object, ...]:
        call = side.calls[index]
        return call.step, call.region or call.stack[::-1][depth : depth + 1]

    for _, numbers in groupby(range(len(side.paths)), place):
        yield [side.paths[number] for number in numbers]


def _shared_frames(paths: Sequence[PathCall]) -> int:
    """Return how many of the outermost frames all calls that are made again come through."""
    counts = Counter(paths)
    again = {path.stack for path, count in counts.items() if count > 1}
    depth = 0
    for frames in zip(*(stack[::-1] for stack in again), strict=False):
        if len(set(frames)) > 1:
            break
        depth += 1
    return depth


def _divergence(
    deviation: Deviation, place: Place, change: Change, majority: _Side, minority: _Side
) -> tuple[int, Divergence]:
    at, there = min(change.at, len(majority.calls) - 1), min(change.there, len(minority.calls) - 1)
    expected = _at_own_line(majority.calls[at], minority.paths)
    got = _at_own_line(minority.calls[there], majority.paths)
    calls: tuple[Call, ...] = (expected, got)
    if place != "round":
        run = (
            minority.calls[change.there : change.there + change.count]
            if deviation == "insert"
            else majority.calls[change.at : change.at + change.count]
        )
        calls = (got if deviation == "insert" else expected, *run[1:])
    key = expected.key if deviation == "drop" and place != "round" else got.key
    return at, Divergence(
        vote=Vote(key, got.seq, ()),
        majority_rank=majority.ranks[0],
        minority_rank=minority.ranks[0],
        majority=expected,
        minority=got,
        explanation=Explanation(deviation, place, calls, (support("whole programs"),), aligned=True),
        culprits=minority.ranks,
        tie=len(majority.ranks) == len(minority.ranks),
        whole=True,
        ended=change.there >= len(minority.calls),
        iterations=(minority.iterations, majority.iterations) if place == "round" else None,
    )


def _at_own_line(call: Call, others: Sequence[PathCall]) -> Call:
    """Return the call as made from its innermost frame that no call of the other side comes through."""
    passed = {frame for path in others for frame in path.stack}
    own = next((frame for frame in call.stack if frame not in passed), call.site)
    return replace(call, stack=(own,)) if own is not None else call
