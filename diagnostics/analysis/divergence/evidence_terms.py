"""What speaks for each kind of divergence, and how much: every weight of this package is in the table beside it."""

import math
from typing import Literal

from msgspec import Struct

from diagnostics.contract.files import table_beside

_WEIGHTS = table_beside(__file__)
Support = Literal[
    "same line", "later calls agree", "round already begun", "backward begun", "same calls again in the step",
    "later in the round", "round not finished by the peers", "source branches", "past that line",
    "peers past that line", "branches of a function", "neither came to the other", "same operation",
    "other operation", "halves", "ended in order", "whole programs", "line unknown", "single position",
    "peers in backward", "made alone",
]  # fmt: skip
SUPPORT: dict[Support, float] = _WEIGHTS["support"]
"""What a kind rests on. `branch_calls`, `gloo` and the fault library (tests/faults) are right with these; the order
matters, the figures only tell how sure a report may sound: 1.7 is 0.85, 3.5 is 0.97."""
Position = Literal[
    "any call", "source behind", "source leaves", "source within", "between the loop's lines", "next line",
    "other caller", "through the loop's functions", "barrier", "peers came later", "source one rank",
]  # fmt: skip
POSITION: dict[Position, float] = _WEIGHTS["position"]
"""Where a call stands that the loop does not make in every round. The distance in lines tells nothing from the second
line on (measured: between +0.6 and -0.5), nor does the name of a function: neither is a term."""
CERTAIN_BEHIND: frozenset[Support | Position] = frozenset({"source behind", "source leaves", "next line"})
"""Terms that place a call behind the loop whoever makes it."""
SHOWS_WHO: frozenset[Support | Position] = frozenset(
    {"source behind", "source leaves", "peers in backward", "round already begun", "backward begun", "source one rank"}
)
"""Terms that show which side deviates, however many ranks are on it."""
OCCASIONAL: frozenset[Support | Position] = frozenset({"source within", "any call"})
"""Terms that show it together: the loop holds the call, and does not make it in every round."""
UNCLEAR = 0.5  # Below this the calls tell nothing: both kinds are named.
UNCLEAR_WITHOUT_CALLERS = 1.5
"""For a call behind the loop of which only the innermost line was recorded: whatever its operation is, the function's
caller may be in the loop."""


class Term(Struct, frozen=True):
    """One piece of evidence."""

    name: Support | Position
    weight: float
    count: int = 0
    """Calls, rounds or a step that the term speaks of; 0 = none."""


def support(name: Support, count: int = 0) -> Term:
    """Return a term for a kind."""
    return Term(name, SUPPORT[name], count)


def position(name: Position) -> Term:
    """Return a term for where a call stands."""
    return Term(name, POSITION[name])


def probability(weight: float) -> float:
    """Return the probability that log odds stand for, in hundredths."""
    return round(1 / (1 + math.exp(-weight)), 2)
