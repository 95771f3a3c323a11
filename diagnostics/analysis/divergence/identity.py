"""Defines when calls of two ranks are the same, for every comparison of them. A field that a recorder omits never
differs. The split sizes of an all_to_all are not compared: they need not be equal, but must match pair by pair.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import takewhile

from diagnostics.evidence.calls import ROOTED, Call, Wire
from diagnostics.evidence.model import Frame

PARTS = ("operation", "number of elements", "dtype", "root", "ReduceOp")  # The parts of a `Wire`, in its order.
_UNKNOWN = ((), None, "")


def differing_parts(first: Wire, second: Wire) -> tuple[str, ...]:
    """Return the names of the parts that are known on both sides and differ."""
    rows = zip(PARTS, first, second, strict=True)
    return tuple(name for name, a, b in rows if a != b and a not in _UNKNOWN and b not in _UNKNOWN)


def agree(first: Wire, second: Wire) -> bool:
    """Whether no part that is known on both sides differs, so that the two calls can complete with each other."""
    return first == second or not differing_parts(first, second)


def within(wire: Wire, members: Sequence[int]) -> Wire:
    """Return a signature whose root is numbered within its group, and so is equal in groups of other ranks."""
    return wire if wire.root is None else wire._replace(root=members.index(wire.root) if wire.root in members else -1)


def signature(wire: Wire) -> int:
    """Return a 64-bit hash of what all ranks must agree on; it is the same in every process and never 0."""
    from hashlib import blake2b  # Imported here because it loads OpenSSL, which most diagnoses do not need.

    digest = blake2b(repr(tuple(wire)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def same_statement(first: Call, second: Call) -> bool:
    """Whether two calls are one statement with different arguments: the same operation from the same line, or one whose
    root or ReduceOp alone differs.
    """
    if first.wire.op != second.wire.op:
        return False
    if not (first.site and second.site):
        return first.wire.op in ROOTED
    if first.site == second.site and first.stack[1:3] == second.stack[1:3]:
        return True
    same_payload = (first.wire.amounts, first.wire.dtypes) == (second.wire.amounts, second.wire.dtypes)
    roots = {first.wire.root, second.wire.root}  # Not recorded in NCCL's dumps, so they may differ there.
    other_root = first.wire.op in ROOTED and (len(roots) > 1 or None in roots)
    return same_payload and (other_root or first.wire.reduce_op != second.wire.reduce_op)


def at_line(call: Call) -> Hashable:
    """Return the identity of a call: its arguments and the line that makes it."""
    return (call.wire, call.site)


def on_path(call: Call) -> Hashable:
    """Return the identity of a call: its arguments and all of its frames, so two paths to one line are two calls."""
    return (call.wire, call.stack)


def in_backward(call: Call) -> bool:
    """Whether the call was made in a backward pass, by its recorder or torch's own frames, not the user's names."""
    return call.region.startswith("backward")


def shared_path(paths: Iterable[Sequence[Frame]]) -> list[Frame]:
    """Return the longest common prefix of the paths."""
    levels = takewhile(lambda frames: len(set(frames)) == 1, zip(*paths, strict=False))
    return [frames[0] for frames in levels]


def split_at(first: Sequence[Frame], second: Sequence[Frame]) -> tuple[Frame, Frame] | None:
    """Return the outermost frames in which two stacks differ, if both are lines of one function."""
    level = len(shared_path([first[::-1], second[::-1]])) + 1
    if level > min(len(first), len(second)):
        return None
    left, right = first[-level], second[-level]
    return (left, right) if (left.file, left.function) == (right.file, right.function) else None


def replaces(first: Call, second: Call) -> bool:
    """Whether both pass tensors of the same size and dtype from the same function, as two branches of an `if` do."""
    if not first.site or not second.site or first.site.function != second.site.function:
        return False
    return (first.wire.amounts, first.wire.dtypes) == (second.wire.amounts, second.wire.dtypes)
