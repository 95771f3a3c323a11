"""Decides whether a call that a loop does not make in every round is after the loop or in a branch within it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.evidence_terms import UNCLEAR, UNCLEAR_WITHOUT_CALLERS, Position, Term, position
from diagnostics.analysis.divergence.identity import shared_path, split_at
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import Frame

_TERM_OF: dict[source_text.Place, Position] = {
    "outside": "source after", "leaves": "source leaves", "inside": "source within",
}  # fmt: skip
"""Position of a call relative to the loop in the source -> its term."""


class LoopPosition(Struct, frozen=True):
    """Where a call is relative to the loop."""

    place: Literal["after", "within"]
    """The more probable place."""
    weight: float
    """Log odds of `place`; never negative."""
    terms: tuple[Term, ...]
    clear: bool
    """Whether the evidence decides."""


def loop_position(call: Call, body: Sequence[Call]) -> LoopPosition:
    """Weigh whether `call`, which is not among the calls of one round of the loop (`body`), is after or within it."""
    text = None if _of_outer_loop(call, body) else by_text(call, body)
    # Lines and callers only serve to guess the structure of the source, so they add nothing if it is known.
    terms = [text, position("any call")] if text is not None else [position("any call"), *_by_frames(call, body)]
    if (text is None or text.name == "source after") and for_one_rank(call, body[0], again=True):
        terms = [position("source one rank")]
    if call.wire.op == "barrier" and all(other.wire.op != "barrier" for other in body):
        terms.append(position("barrier"))
    weight = sum(term.weight for term in terms)
    alone = len(call.stack) == 1 and not call.region and all(len(other.stack) == 1 for other in body)
    clear = weight <= -UNCLEAR or weight >= (UNCLEAR_WITHOUT_CALLERS if alone else UNCLEAR)
    return LoopPosition("after" if weight > 0 else "within", abs(weight), tuple(terms), clear)


def _of_outer_loop(call: Call, body: Sequence[Call]) -> bool:
    """Whether a round has several passes of a loop, each with one call of a line, and a loop around both may lead from
    its last pass to `call` or, as that is in a branch, past it to the next round.
    """
    call, first = with_caller(call, body[0]), body[0]
    frames, op = split_at(call.stack, first.stack), first.user_op or first.wire.op
    if frames is None or len({other.stack for other in body}) == len(body) or not conditions(call, first):
        return False
    at, lines = frames[0], [frame.line for frame in frames]
    is_own = f"{op}(" in " ".join(source_text.calls_at(first.stack[0], first.created_s, op))
    return is_own and source_text.place(at.file, lines, at.line, first.created_s) in {"inside", "leaves"}


def source_says(call: Call, body: Sequence[Call]) -> source_text.Place:
    """Return where the source has the call relative to the loop, in the function in which their paths part."""
    path, bodies = call.stack[::-1], [other.stack[::-1] for other in body]
    level = len(shared_path([path, *bodies]))
    if any(len(other) <= level for other in (path, *bodies)):
        return "unknown"
    own, when_s = path[level], call.created_s
    if any((other[level].file, other[level].function) != (own.file, own.function) for other in bodies):
        if len(path) > 1 or any(len(other) > 1 for other in bodies):
            return "unknown"
        # No callers were recorded: the source may show those of the call's function, or the one of the loop's.
        ups = source_text.callers(own.function, bodies[0][0], when_s)
        places = {source_says(replace(call, stack=(own, up)), body) for up in ups}
        if len(places) == 1 and "unknown" not in places:
            return places.pop()
        ups = [up for up in source_text.callers(bodies[0][0].function, own, when_s) if up.function]
        if len(ups) != 1 or ups[0].line == own.line:
            return "unknown"
        return source_says(call, [replace(other, stack=(*other.stack, ups[0])) for other in body])
    place = source_text.place(own.file, (other[level].line for other in bodies), own.line, when_s)
    deeper = _loop_further_in(bodies, level, when_s)
    if place in {"inside", "leaves"} and deeper is not False:
        # It may be an inner loop. That one has been left if the call after it is made in each round of the outer loop.
        return "outside" if place == "inside" and deeper and not conditions(call, body[0]) else "unknown"
    if place == "no loop":
        return "outside" if deeper else "unknown"
    return place


def source_branches(first: Call, second: Call) -> bool:
    """Whether the source has the two lines in an `if` and its `else`."""
    frames = split_at(first.stack, second.stack)
    return frames is not None and source_text.exclusive(
        frames[0].file, frames[0].line, frames[1].line, second.created_s
    )


def comes_later(call: Call, other: Call) -> bool | None:
    """Return whether the source leads a rank from `call` on to the `other` call; None = it does not show that.

    In straight code it does not: one of two lines has been passed.
    """
    path, others, when_s = call.stack[::-1], other.stack[::-1], call.created_s
    level, frames = len(shared_path([path, others])), split_at(call.stack, other.stack)
    if frames is not None and not source_branches(call, other):
        return False
    names = [at.function.rpartition(".")[2] for at in others[level + 1 :]] + [other.user_op or other.wire.op]
    ahead = (source_text.calls_at(at, when_s, name) for at, name in zip(others[level:], names, strict=False))
    own = source_text.calls_at(path[-1], when_s, call.user_op or call.wire.op) if path else set[str]()
    expected, line = set[str]().union(*ahead) - own, frames[1].line if frames is not None else 0
    answers = [source_text.comes_later(at, expected, when_s, line) for at in path[level:]]
    return True if True in answers else False if frames is not None and None not in answers else None


def straight(first: Call, second: Call) -> bool:
    """Whether the source has no loop around both lines in the function in which the two paths part."""
    if (frames := split_at(first.stack, second.stack)) is None:
        return False
    lines = [frame.line for frame in frames]
    return source_text.place(frames[0].file, lines, lines[0], second.created_s) == "no loop"


def conditions(call: Call, other: Call) -> dict[source_text.Condition, Frame]:
    """Return the conditions on the path to the call in the source, below the frame in which the paths of both part.

    Each has its line, that of the outermost frame if several meet it.
    """
    ways, level, line = _ways(call, other)
    met = [(at, *source_text.condition(at, call.created_s, line)) for way in ways for at in reversed(way[level:])]
    return {condition: replace(at, line=own) for at, condition, own in met if condition != "none"}


def passes_by(call: Call) -> str:
    """Return the line that may let a rank leave out the call in one round of the loop around it; empty if none does."""
    in_loop = False
    for at in call.stack[::-1]:
        in_loop |= source_text.place(at.file, [at.line], at.line, call.created_s) in {"inside", "leaves"}
        line = source_text.condition(at, call.created_s)[1] if in_loop else 0
        # What leaves the loop after that line, by its first statement, skips no single round.
        if line and source_text.place(at.file, [at.line], line + 1, call.created_s) != "leaves":
            return f"{at.file}:{line}"
    return ""


def for_one_rank(call: Call, other: Call, *, again: bool = False) -> bool:
    """Whether such a condition selects one rank; with `again`, a loop must also reach the call repeatedly."""
    (ways, level, line), when_s = _ways(call, other), call.created_s
    for way in ways:
        loops = (source_text.place(at.file, [at.line], at.line, when_s) != "no loop" for at in way[: level + 1])
        # If the outer function does not call the inner one, a library does, whose loop has no frame of the user's.
        by_library = (
            up.file == at.file and not any(caller.function for caller in source_text.callers(at.function, up, when_s))
            for up, at in pairwise(way[: level + 1])
        )
        comes_again = any(loops) or any(by_library)
        if all(source_text.condition(at, when_s, line)[0] != "one rank" for at in way[level:]) or again > comes_again:
            return False
    return True


def way_in(call: Call, other: Call) -> source_text.Condition:
    """Return the condition under which ranks enter the function with the loop around `call`; `other` is outside."""
    (ways, level, line), when_s, answers = _ways(call, other), call.created_s, set[source_text.Condition]()
    for way in ways:
        entered = list[source_text.Condition]()
        for at in way[level:]:
            # A loop of the frame in which the paths part may be around the other call too.
            place = source_text.place(at.file, [at.line], at.line if entered else line, when_s)
            if place == "outside" or (entered and place != "no loop"):
                break
            entered.append(source_text.condition(at, when_s, line)[0])
        answers.add(source_text.most_telling(entered))
    return answers.pop() if len(answers) == 1 else "none"


def with_caller(call: Call, other: Call) -> Call:
    """Return the call with the line of its caller in the function of `other`, if only the source shows one."""
    ways, *_ = _ways(call, other)
    callers = [way for way in ways if len(way) > len(call.stack) and way[0].function]
    return replace(call, stack=tuple(callers[0][::-1])) if len(ways) == len(callers) == 1 else call


def _ways(call: Call, other: Call) -> tuple[list[list[Frame]], int, int]:
    """Return the paths to the call (several if its caller is unknown), the level where they part, the other's line."""
    path, others = list(call.stack[::-1]), other.stack[::-1]
    level = len(shared_path([path, others]))
    line = others[level].line if level < min(len(others), len(path)) and path[level].file == others[level].file else 0
    alone = len(path) == len(others) == 1 and path[0].function != others[0].function
    callers = source_text.callers(path[0].function, others[0], call.created_s) if alone else []
    return [[caller, *path] for caller in callers] or [path], level, line


def by_text(call: Call, body: Sequence[Call]) -> Term | None:
    """Return the term for the position of `call` in the source, or None if the source does not show it."""
    place = source_says(call, body)
    return position(_TERM_OF[place]) if place in _TERM_OF else None


def _loop_further_in(bodies: list[tuple[Frame, ...]], level: int, when_s: float | None) -> bool | None:
    """Whether one loop below the frame that all share at `level` contains all calls; None if the source is unknown."""
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
    """Compare the call's path with the frames that all calls of the loop share, outermost first."""
    shared = shared_path(other.stack[:0:-1] for other in body)  # Without the calls' own lines.
    path = call.stack[::-1]
    level = len(shared_path([shared, path]))
    if level < len(shared) and level < len(path):
        own, loop = path[level], shared[level]
        same = (own.file, own.function) == (loop.file, loop.function)
        if not same and level:
            return []  # One line leads to both: the loop may be in a library, which calls the user's functions from it.
        if not same or own.line < loop.line:
            return [position("other caller")]
        return [position("next line")] if own.line == loop.line + 1 and not conditions(call, body[0]) else []
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
