"""Whether a call that a loop does not make in every round stands behind the loop or in a branch within it."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.evidence_terms import UNCLEAR, UNCLEAR_WITHOUT_CALLERS, Position, Term, position
from diagnostics.analysis.divergence.identity import shared_path
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import Frame

_TERM_OF: dict[source_text.Place, Position] = {
    "outside": "source behind", "leaves": "source leaves", "inside": "source within",
}  # fmt: skip
"""What the program's text says of a call -> the term for it."""


class Standing(Struct, frozen=True):
    """Where the call stands."""

    place: Literal["behind", "within"]
    """The likelier one."""
    weight: float
    """Log odds of `place`, so never negative."""
    terms: tuple[Term, ...]
    clear: bool
    """False: the evidence does not tell."""


def standing(call: Call, body: Sequence[Call]) -> Standing:
    """Weigh where `call` stands.

    Args:
        call: it is none of `body`.
        body: one round of the loop.
    """
    text = by_text(call, body)
    # Lines and callers are what the text is guessed by: where it is known, they tell nothing more.
    terms = [text, position("any call")] if text is not None else [position("any call"), *_by_frames(call, body)]
    if call.wire.op == "barrier" and all(other.wire.op != "barrier" for other in body):
        terms.append(position("barrier"))
    weight = sum(term.weight for term in terms)
    alone = len(call.stack) == 1 and not call.region and all(len(other.stack) == 1 for other in body)
    clear = weight <= -UNCLEAR or weight >= (UNCLEAR_WITHOUT_CALLERS if alone else UNCLEAR)
    return Standing("behind" if weight > 0 else "within", abs(weight), tuple(terms), clear)


def source_says(call: Call, body: Sequence[Call]) -> source_text.Place:
    """Return what the program's text says at the level where the call's path parts from that of the loop's calls."""
    path, bodies = call.stack[::-1], [other.stack[::-1] for other in body]
    level = len(shared_path([path, *bodies]))
    if any(len(other) <= level for other in (path, *bodies)):
        return "unknown"
    own, when_s = path[level], call.created_s
    if any((other[level].file, other[level].function) != (own.file, own.function) for other in bodies):
        if len(path) > 1 or any(len(other) > 1 for other in bodies):
            return "unknown"
        frames = {other[0] for other in bodies}
        place = source_text.called(own.file, frames, own.function, when_s)
        return place if place != "unknown" else source_text.calls_the_loop(own, frames, when_s)
    place = source_text.place(own.file, (other[level].line for other in bodies), own.line, when_s)
    deeper = _loop_further_in(bodies, level, when_s)
    if place in {"inside", "leaves"} and deeper is not False:
        return "unknown"  # The loop may be the one further in, which the call is outside of in any case.
    if place == "no loop":
        return "outside" if deeper else "unknown"
    return place


def source_branches(one: Call, other: Call) -> bool:
    """Whether the program's text has the two lines in an `if` and its `else`."""
    lines = _parting(one, other)
    return lines is not None and source_text.exclusive(*lines, other.created_s)


def straight(one: Call, other: Call) -> bool:
    """Whether the program's text has no loop around both lines at the level where the two paths part."""
    if (parting := _parting(one, other)) is None:
        return False
    file, *lines = parting
    return source_text.place(file, lines, lines[0], other.created_s) == "no loop"


def _parting(one: Call, other: Call) -> tuple[str, int, int] | None:
    """Return the file and the two lines at which two paths part, if both are lines of one function."""
    pairs = zip(one.stack[::-1], other.stack[::-1], strict=False)
    left, right = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
    if left is None or right is None or (left.file, left.function) != (right.file, right.function):
        return None
    return left.file, left.line, right.line


def in_branch(call: Call, other: Call) -> bool:
    """Whether the program's text has a branch on the call's way from where the paths of the two part."""
    path, others = call.stack[::-1], other.stack[::-1]
    level = len(shared_path([path, others]))
    there = others[level] if level < len(others) else None
    return any(
        source_text.conditional(frame, call.created_s, there.line if there and frame.file == there.file else 0)
        for frame in path[level:]
    )


def by_text(call: Call, body: Sequence[Call]) -> Term | None:
    """Return what the program's text says about where `call` stands, or None if it says nothing."""
    place = source_says(call, body)
    return position(_TERM_OF[place]) if place in _TERM_OF else None


def _loop_further_in(bodies: list[tuple[Frame, ...]], level: int, when_s: float | None) -> bool | None:
    """Whether one loop below the frame that all share at `level` holds all calls; None where no text tells."""
    while len({path[level] for path in bodies}) == 1 and all(len(path) > level + 1 for path in bodies):
        level += 1
        first = bodies[0][level]
        if any((path[level].file, path[level].function) != (first.file, first.function) for path in bodies):
            return False
        place = source_text.place(first.file, (path[level].line for path in bodies), first.line, when_s)
        if place != "no loop":
            return None if place == "unknown" else True
    return False


def _by_frames(call: Call, body: Sequence[Call]) -> list[Term]:
    """Compare the call's path with the frames that all calls of the loop come through, outermost first."""
    shared = shared_path(other.stack[:0:-1] for other in body)  # without the calls' own lines
    path = call.stack[::-1]
    level = len(shared_path([shared, path]))
    if level < len(shared) and level < len(path):
        own, loop = path[level], shared[level]
        same = (own.file, own.function) == (loop.file, loop.function)
        if not same and level:
            return []  # One line leads to both: the loop may be in a library, which calls the user's functions from it.
        if not same or own.line < loop.line:
            return [position("other caller")]
        return [position("next line")] if own.line == loop.line + 1 else []
    if len(path) > len(shared) + 1 and any(path[len(shared)] in other.stack[1:] for other in body):
        return [position("through the loop's functions")]
    if level >= len(path) or any(len(other.stack) <= level for other in body):
        return []
    own, frames = path[level], [other.stack[::-1][level] for other in body]
    if any((frame.file, frame.function) != (own.file, own.function) for frame in frames):
        return []
    lines = [frame.line for frame in frames]
    if min(lines) < own.line <= max(lines):
        return [position("between the loop's lines")]
    return [position("next line")] if own.line == max(lines) + 1 else []
