"""Where a rank parts from the others, and how: compares the calls of the ranks to their very end.

A post-mortem knows only what was called until the ranks stood; a simulation also knows what each of them would have
called later. That decides what is a guess otherwise: a call that the others make at no time hangs on a condition,
one that they make less often is of another number of iterations. Where it is neither, nothing is said.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from diagnostics.evidence.calls import is_library
from dtk.preflight.calls import Entry, Program, Record
from dtk.preflight.edits import Edit, Token, edits

MOST_CLASSES = 9
"""Ranks with more ways than these through the program are not compared."""
Kind = Literal["extra", "skipped", "more", "fewer", "bucket"]
"""The rank added calls or left some out; it runs more or fewer iterations; it has no gradients to reduce."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference that explains why the ranks stand."""

    kind: Kind
    ranks: tuple[int, ...]
    """That differ from most."""
    tie: bool
    """One against one: either may be wrong."""
    usual_rank: int
    usual: int
    """Number of the call at which it is when the other parts."""
    odd_rank: int
    odd: int
    calls: tuple[int, ...]
    """Numbers of the calls left out (of the usual rank) or added (of the odd one)."""
    usual_site: str
    """`file:line<tab>function` of the innermost frame that the other side does not pass through."""
    odd_site: str
    why: str
    """One clause."""
    over: bool = False
    """Whether the call of the odd rank is its last one: it has none where the usual one is."""


@dataclass(frozen=True, slots=True)
class _Side:
    """Ranks that call the same, and what."""

    ranks: tuple[int, ...]
    tokens: tuple[Token, ...]
    numbers: tuple[int, ...]
    """Number of each call on the first of the ranks: sends of its own count too."""
    entries: tuple[Entry, ...]
    rounds: int
    """Steps that were begun."""


def part(records: Mapping[int, Record]) -> Parting | None:
    """The first difference between the ranks' whole programs that is a matter of calls left out or added.

    Args:
        records: all ranks of the job, of which some stand.

    Returns:
        None when a rank failed, when several sides are equally large, or when the difference is of another kind.
    """
    if any(one.end.kind not in ("finished", "exited") or one.end.code for one in records.values()):
        return None
    sides = _sides(records.values())
    if not 1 < len(sides) <= MOST_CLASSES:
        return None
    usual = sides[0]
    tie = len(sides[1].ranks) == len(usual.ranks)
    if tie and len(records) > 2:
        return None
    found = [one for one in (_compare(usual, odd, tie=tie) for odd in sides[1:]) if one is not None]
    if not found:
        return None
    first = min(found, key=lambda one: (one.usual, one.ranks))
    blamed = sorted(rank for one in found for rank in one.ranks if _alike(one, first))
    if 2 * len(blamed) >= len(records) and not tie:
        return None
    ranks = (usual.ranks[0], *blamed) if tie else blamed
    return Parting(first.kind, tuple(sorted(ranks)), tie, *_rest(first))


def _alike(one: Parting, other: Parting) -> bool:
    return (one.kind, one.odd_site, one.usual_site) == (other.kind, other.odd_site, other.usual_site)


def _rest(one: Parting) -> tuple[int, int, int, int, tuple[int, ...], str, str, str, bool]:
    sides = (one.usual_rank, one.usual, one.odd_rank, one.odd)
    return (*sides, one.calls, one.usual_site, one.odd_site, one.why, one.over)


def _sides(records: Iterable[Record]) -> list[_Side]:
    """Ranks by what they call, the most first."""
    ranks: dict[tuple[tuple[Token, ...], int], list[int]] = {}
    sides: dict[tuple[tuple[Token, ...], int], tuple[tuple[int, ...], tuple[Entry, ...]]] = {}
    known: dict[tuple[int, tuple[str, ...]], tuple[tuple[Token, ...], tuple[int, ...], tuple[Entry, ...]]] = {}
    for record in records:
        labels = tuple(record.label(index) for index in range(len(record.groups)))
        form = known.setdefault((id(record.program), labels), ((), (), ()))
        if not form[0]:
            form = known[id(record.program), labels] = _form(record.program, labels)
        key = (form[0], record.rounds)
        ranks.setdefault(key, []).append(record.rank)
        sides.setdefault(key, form[1:])
    found = [_Side(tuple(ranks[key]), key[0], *sides[key], key[1]) for key in ranks]
    return sorted(found, key=lambda one: (-len(one.ranks), one.ranks))


def _form(program: Program, labels: Sequence[str]) -> tuple[tuple[Token, ...], tuple[int, ...], tuple[Entry, ...]]:
    """The collectives of a program: as tokens, their numbers, their entries."""
    kinds = [Token(labels[entry.group], entry.wire, entry.stack) for entry in program.entries]
    issued = [event for event in program.steps() if event >= 0]
    kept = [(number, event) for number, event in enumerate(issued) if not program.entries[event].p2p]
    tokens = tuple(kinds[event] for _, event in kept)
    return tokens, tuple(number for number, _ in kept), tuple(program.entries[event] for _, event in kept)


def _compare(usual: _Side, odd: _Side, *, tie: bool) -> Parting | None:
    """How one side differs from the usual one; None for a difference of another kind, or none that matters."""
    found = edits(usual.tokens, odd.tokens)
    if not found or not usual.tokens or not odd.tokens:
        return None
    first = found[0]
    if usual.rounds != odd.rounds:
        if tie:  # Which of the two runs the right number is not known; how they ended may say it.
            return None
        kind: Kind = "fewer" if odd.rounds < usual.rounds else "more"
        return _parting(kind, first, usual, odd, f"it runs {_steps(odd.rounds)}, its peers {usual.rounds}")
    if first.kind == "other call" or _replaced(found) or _moved(found, usual, odd):
        return None
    if first.kind == "left out" and _in_backward(usual.entries[first.at]):
        # DDP itself complains on that rank, which says more than the calls do.
        ddp = usual.entries[first.at].wire.op == "all_reduce"
        return None if ddp else _parting("bucket", first, usual, odd, "it left backward without it")
    mine, theirs = (odd, usual) if first.kind == "added" else (usual, odd)
    start = first.there if first.kind == "added" else first.at
    run = mine.tokens[start : start + first.count]
    if not tie and _again(mine.tokens, start, first.count) and _whole_passes(run, theirs):
        kind = "more" if first.kind == "added" else "fewer"
        side = "it makes them more often than" if kind == "more" else "it makes them less often than"
        return _parting(kind, first, usual, odd, f"all its calls are those of its peers, {side} they do")
    kind = "extra" if first.kind == "added" else "skipped"
    who = "its peers make" if kind == "extra" else "it makes"
    return _parting(kind, first, usual, odd, f"{who} no such call there, neither before nor later")


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def _replaced(found: list[Edit]) -> bool:
    """One call in place of another: left out and added at the same spot."""
    first = found[0]
    end = (first.at + first.count, first.there) if first.kind == "left out" else (first.at, first.there + first.count)
    return any(one.kind != first.kind and (one.at, one.there) == end for one in found[1:2])


def _moved(found: list[Edit], usual: _Side, odd: _Side) -> bool:
    """The same calls in another order: what is added here is left out there."""
    first = found[0]
    run = _tokens(first, usual, odd)
    return any(one.kind != first.kind and _tokens(one, usual, odd) == run for one in found[1:])


def _tokens(edit: Edit, usual: _Side, odd: _Side) -> tuple[Token, ...]:
    if edit.kind == "added":
        return odd.tokens[edit.there : edit.there + edit.count]
    return usual.tokens[edit.at : edit.at + edit.count]


def _in_backward(entry: Entry) -> bool:
    return entry.region.startswith("backward") or "\tbackward" in entry.stack


def _again(tokens: tuple[Token, ...], start: int, count: int) -> bool:
    """Whether the calls stand beside calls like them, as further rounds of a loop do."""
    run = tokens[start : start + count]
    round_ = next(run[:size] for size in range(1, count + 1) if run == (run[:size] * count)[:count])
    size = len(round_)
    return round_ in (tokens[max(0, start - size) : start], tokens[start + count : start + count + size])


def _whole_passes(run: Sequence[Token], peers: _Side) -> bool:
    """Whether calls are whole passes of what the peers do (a forward, a backward), once or several times."""
    passes = {tuple(tokens) for tokens in _passes(peers)}
    at = 0
    while at < len(run):
        fits = [len(one) for one in passes if tuple(run[at : at + len(one)]) == one]
        if not fits:
            return False
        at += max(fits)
    return True


def _passes(side: _Side) -> Iterable[list[Token]]:
    """The calls cut up by step and region; where no regions are known, by the line of the loop that they come from."""
    depth = _shared(side.tokens)

    def place(index: int) -> tuple[object, ...]:
        entry = side.entries[index]
        if entry.region:
            return (entry.step, entry.region)
        return (entry.step, tuple(entry.stack.splitlines()[::-1][depth : depth + 1]))

    for _, numbers in groupby(range(len(side.tokens)), place):
        yield [side.tokens[number] for number in numbers]


def _shared(tokens: Sequence[Token]) -> int:
    """How many of the outermost frames all calls that are made again come through."""
    seen: set[Token] = set()
    again = {one.stack for one in tokens if one in seen or seen.add(one)}  # type: ignore[func-returns-value]
    depth = 0
    for frames in zip(*(stack.splitlines()[::-1] for stack in again), strict=False):
        if len(set(frames)) > 1:
            break
        depth += 1
    return depth


def _parting(kind: Kind, edit: Edit, usual: _Side, odd: _Side, why: str) -> Parting:
    at, there = min(edit.at, len(usual.tokens) - 1), min(edit.there, len(odd.tokens) - 1)
    side, start = (odd, edit.there) if edit.kind == "added" else (usual, edit.at)
    return Parting(
        kind=kind,
        ranks=odd.ranks,
        tie=False,
        usual_rank=usual.ranks[0],
        usual=usual.numbers[at],
        odd_rank=odd.ranks[0],
        odd=odd.numbers[there],
        calls=side.numbers[start : start + edit.count],
        usual_site=_own_line(usual.entries[at], odd.tokens),
        odd_site=_own_line(odd.entries[there], usual.tokens),
        why=why,
        over=edit.there >= len(odd.tokens),
    )


def _own_line(entry: Entry, others: Sequence[Token]) -> str:
    """The user's innermost frame that no call of the other side comes through; where there is none, the innermost."""
    frames = [one for one in entry.stack.splitlines() if not is_library(one.partition("\t")[0].rpartition(":")[0])]
    passed = {frame for token in others for frame in token.stack.splitlines()}
    return next((frame for frame in frames if frame not in passed), frames[0] if frames else entry.site)
