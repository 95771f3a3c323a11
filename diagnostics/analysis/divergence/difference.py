"""What the comparison of two ranks' calls comes to, and how two calls are told to be the same. Knows no ranks."""

from dataclasses import dataclass
from typing import Literal

from diagnostics.evidence.calls import Call

Kind = Literal["signature", "operation", "skipped", "extra", "fewer", "more", "bucket"]
"""What the second rank did: other arguments, another operation, left calls out, added some, ran fewer or more
steps, never had a gradient bucket ready."""
_BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Difference:
    """How the second rank differs from the first."""

    kind: Kind
    confidence: float
    calls: tuple[Call, ...]
    """The calls left out or added; for other kinds the two that meet."""
    why: str
    """One clause that says what gave it away."""
    aligned: bool = False
    """Whether later calls of both agree again, which proves the kind."""
    settled: bool = False
    """Whether the second rank is the odd one however many make either call: the program or its own calls show it."""
    other: Kind | None = None
    """Another kind that explains the same calls as well."""


def token(call: Call) -> tuple[object, ...]:
    """What makes two calls the same one: signature and line."""
    return (call.wire, call.site)


def path_token(call: Call) -> tuple[object, ...]:
    """As `token`, but calls of one line that came there on two ways are two."""
    return (call.wire, call.stack)


def in_backward(call: Call) -> bool:
    """Whether it was made in the backward pass."""
    return call.region.startswith(_BACKWARD) or any(_BACKWARD in frame.function for frame in call.stack[:6])
