"""Whether a call that a loop does not make in every round stands behind the loop or in a branch within it.

Decided from the program's text, the frames, the lines and, weakly, from names; see `evidence_terms` for the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.evidence_terms import (
    UNCLEAR,
    UNCLEAR_WITHOUT_CALLERS,
    Term,
    position,
)
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import Frame


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the call stands."""

    place: Literal["behind", "within"]
    """The likelier one."""
    weight: float
    """Log odds of `place`, so never negative."""
    terms: tuple[Term, ...]
    clear: bool
    """False: the evidence does not tell."""
    by_text: bool = False
    """Whether the program's own text says so."""


def standing(call: Call, body: Sequence[Call]) -> Standing:
    """Weigh where `call` stands.

    Args:
        call: it is none of `body`.
        body: one round of the loop.
    """
    terms = [by_text(call, body) or position("any call")]
    told_by_text = terms[0].name != "any call"
    if not told_by_text:
        terms += _by_frames(call, body)
        if call.wire.op == "barrier" and all(one.wire.op != "barrier" for one in body):
            terms.append(position("barrier"))
    weight = sum(term.weight for term in terms)
    alone = len(call.stack) == 1 and not call.region and all(len(one.stack) == 1 for one in body)
    clear = weight <= -UNCLEAR or weight >= (UNCLEAR_WITHOUT_CALLERS if alone else UNCLEAR)
    return Standing("behind" if weight > 0 else "within", abs(weight), tuple(terms), clear, told_by_text)


def source_says(call: Call, body: Sequence[Call]) -> source_text.Place:
    """Return what the program's text says at the level where the call's path parts from that of the loop's calls."""
    path, bodies = call.stack[::-1], [one.stack[::-1] for one in body]
    level = 0
    while level < len(path) and all(len(one) > level and one[level] == path[level] for one in bodies):
        level += 1
    if level >= len(path) or any(len(one) <= level for one in bodies):
        return "unknown"
    own, when_s = path[level], call.created_s
    if any((one[level].file, one[level].function) != (own.file, own.function) for one in bodies):
        if len(path) > 1 or any(len(one) > 1 for one in bodies):
            return "unknown"
        frames = {one[0] for one in bodies}
        place = source_text.called(own.file, frames, own.function, when_s)
        return place if place != "unknown" else source_text.calls_the_loop(own, frames, when_s)
    place = source_text.place(own.file, (one[level].line for one in bodies), own.line, when_s)
    deeper = _loop_further_in(bodies, level, when_s)
    if place in {"inside", "leaves"} and deeper is not False:
        return "unknown"  # The loop may be the one further in, which the call is outside of in any case.
    if place == "no loop":
        return "outside" if deeper else "unknown"
    return place


def source_branches(one: Call, other: Call) -> bool:
    """Whether the program's text has the two lines in an `if` and its `else`."""
    for left, right in zip(one.stack[::-1], other.stack[::-1], strict=False):
        if left != right:
            same = (left.file, left.function) == (right.file, right.function)
            return same and source_text.exclusive(left.file, left.line, right.line, other.created_s)
    return False


def straight(one: Call, other: Call) -> bool:
    """Whether the program's text has no loop around both lines at the level where the two paths part."""
    for left, right in zip(one.stack[::-1], other.stack[::-1], strict=False):
        if left != right:
            same = (left.file, left.function) == (right.file, right.function)
            lines = (left.line, right.line)
            return same and source_text.place(left.file, lines, left.line, other.created_s) == "no loop"
    return False


def in_branch(call: Call) -> bool:
    """Whether the program's text has the call in a branch within its innermost loop or function."""
    return call.site is not None and source_text.conditional(call.site, call.created_s)


def by_text(call: Call, body: Sequence[Call]) -> Term | None:
    """Return what the program's text says about where `call` stands, or None if it says nothing."""
    place = source_says(call, body)
    if place == "outside":
        return position("source behind")
    if place == "leaves":
        return position("source leaves")
    return position("source within") if place == "inside" else None


def _loop_further_in(bodies: list[tuple[Frame, ...]], level: int, when_s: float | None) -> bool | None:
    """Whether one loop below the frame that all share at `level` holds all calls; None where no text tells."""
    while len({one[level] for one in bodies}) == 1 and all(len(one) > level + 1 for one in bodies):
        level += 1
        first = bodies[0][level]
        if any((one[level].file, one[level].function) != (first.file, first.function) for one in bodies):
            return False
        place = source_text.place(first.file, (one[level].line for one in bodies), first.line, when_s)
        if place != "no loop":
            return None if place == "unknown" else True
    return False


def _by_frames(call: Call, body: Sequence[Call]) -> list[Term]:
    """Compare the call's path with the frames that all calls of the loop come through, outermost first."""
    shared = _outer_frames(body)
    path = call.stack[::-1]
    level = 0
    while level < min(len(shared), len(path)) and shared[level] == path[level]:
        level += 1
    if level < len(shared) and level < len(path):
        own, loop = path[level], shared[level]
        same = (own.file, own.function) == (loop.file, loop.function)
        if not same and level:
            return []  # One line leads to both: the loop may be in a library, which calls the user's functions from it.
        if not same or own.line < loop.line:
            return [position("other caller")]
        return [position("next line")] if own.line == loop.line + 1 else []
    if len(path) > len(shared) + 1 and any(path[len(shared)] in one.stack[1:] for one in body):
        return [position("through the loop's functions")]
    if level >= len(path) or any(len(one.stack) <= level for one in body):
        return []
    own, frames = path[level], [one.stack[::-1][level] for one in body]
    if any((one.file, one.function) != (own.file, own.function) for one in frames):
        return []
    first, last = min(one.line for one in frames), max(one.line for one in frames)
    if first < own.line <= last:
        return [position("between the loop's lines")]
    return [position("next line")] if own.line == last + 1 else []


def _outer_frames(body: Sequence[Call]) -> list[Frame]:
    """Return the frames through which every call of a loop comes, outermost first, without the calls' own lines."""
    shared: list[Frame] = []
    for frames in zip(*(one.stack[:0:-1] for one in body), strict=False):
        if any(frame != frames[0] for frame in frames):
            break
        shared.append(frames[0])
    return shared
