"""The terms of evidence for each kind of divergence. Their weights (log odds) are in the YAML file beside this one."""

import math
from typing import Literal

from msgspec import Struct

from diagnostics.contract.files import table_beside

_WEIGHTS = table_beside(__file__)
Support = Literal[
    "same line", "later calls agree", "round already begun", "backward begun", "same calls again in the step",
    "later in the round", "round not finished by the peers", "source branches", "past that line",
    "peers past that line", "branches of a function", "neither came to the other", "same operation",
    "other operation", "halves", "source condition", "ended in order", "whole programs", "line unknown",
    "single position", "peers in backward", "made alone", "between two rounds", "others agree outside",
    "forward twice", "another thread",
]  # fmt: skip
SUPPORT: dict[Support, float] = _WEIGHTS["support"]
"""Weights of the terms that support a kind. `branch_calls`, `gloo` and the fault library (tests/faults) are right with
them. Their order matters; their values only set the confidence that is reported: 1.7 gives 0.85, 3.5 gives 0.97."""
Position = Literal[
    "any call", "source after", "source leaves", "source within", "between the loop's lines", "next line",
    "other caller", "through the loop's functions", "barrier", "peers came later", "source one rank",
]  # fmt: skip
POSITION: dict[Position, float] = _WEIGHTS["position"]
"""Weights of the terms that say whether a call is after the loop (> 0) or within it (< 0). The distance in lines is no
evidence from the second line on (measured: between +0.6 and -0.5), nor is the name of a function."""
CERTAIN_AFTER: frozenset[Support | Position] = frozenset({"source after", "source leaves", "next line"})
"""Terms that place a call after the loop, whichever rank makes it."""
SHOWS_WHO: frozenset[Support | Position] = frozenset(
    {"source after", "source leaves", "peers in backward", "round already begun", "backward begun", "source one rank"}
)
"""Terms that show which side deviates, regardless of how many ranks are on each side."""
OCCASIONAL: frozenset[Support | Position] = frozenset({"source within", "any call"})
"""Terms that show it only together: the loop contains the call, and does not make it in every round."""
GUESSES: frozenset[Support | Position] = frozenset(
    {"single position", "line unknown", "same operation", "other operation"}
)
"""Terms that only say what the two calls are, so that lines of a log or variables may tell more."""
UNCLEAR = 0.5  # Log odds below which both kinds are reported. Measured: 0 to 0.5 alike; 1 leaves 4 of 34 jobs open.
UNCLEAR_WITHOUT_CALLERS = 1.5
"""The same for a call after the loop of which only the innermost line was recorded: the caller of that function may be
in the loop."""


class Term(Struct, frozen=True):
    """One piece of evidence."""

    name: Support | Position
    weight: float
    count: int = 0
    """Number of calls that the term is about; 0 = none."""


def support(name: Support, count: int = 0) -> Term:
    """Return the term of that name from `SUPPORT`."""
    return Term(name, SUPPORT[name], count)


def position(name: Position) -> Term:
    """Return the term of that name from `POSITION`."""
    return Term(name, POSITION[name])


def probability(weight: float) -> float:
    """Convert log odds to a probability, rounded to two digits."""
    return round(1 / (1 + math.exp(-weight)), 2)
