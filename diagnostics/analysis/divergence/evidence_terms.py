"""What speaks for a kind of divergence, and how much: every weight of this package stands here.

A weight is the natural logarithm of odds. Positive weights of the second table speak for a call behind the loop,
negative ones for a call within it. "Measured" means `benchmarks/loop_calls.py` over the source of torch, datasets and
huggingface_hub: 4,606 conditional calls of loops and 2,254 first calls behind loops that come after the last
call that the loop makes in every round.
"""

import math
from dataclasses import dataclass
from typing import Literal

Support = Literal[
    "same line", "later calls agree", "round already begun", "backward begun", "same calls again in the step",
    "later in the round", "round not finished by the peers", "source branches", "past that line",
    "peers past that line", "branches of a function", "neither came to the other", "same operation",
    "other operation", "halves", "ended in order", "whole programs", "line unknown", "single position",
]  # fmt: skip
SUPPORT: dict[Support, float] = {
    "same line": 5.0,
    "later calls agree": 3.5,
    "round already begun": 1.7,
    "backward begun": 0.85,
    "same calls again in the step": 1.7,
    "later in the round": 1.7,
    "round not finished by the peers": 1.4,
    "source branches": 2.2,
    "past that line": 1.7,
    "peers past that line": 1.1,
    "branches of a function": 2.2,
    "neither came to the other": 1.1,
    "same operation": 0.85,
    "other operation": 1.4,
    "halves": 1.4,
    "ended in order": 2.2,
    "whole programs": 4.0,
    "line unknown": 0.4,
    "single position": 0.6,
}
"""What a kind rests on. `branch_calls`, `gloo` and the fault library (tests/faults) are right with these; the order
matters, the figures only tell how sure a report may sound: 1.7 is 0.85, 3.5 is 0.97."""

Position = Literal[
    "any call", "source behind", "source leaves", "source within", "between the loop's lines", "next line",
    "other caller", "through the loop's functions", "barrier", "peers came later",
]  # fmt: skip
POSITION: dict[Position, float] = {
    "any call": -0.7,  # Measured: ln(2254 / 4606).
    "source behind": 5.0,
    "source leaves": 5.0,
    "source within": -5.0,
    "between the loop's lines": -7.2,  # Measured: 4,278 within, 0 behind.
    "next line": 7.5,  # Measured: 0 within, 590 behind; an `if` needs a line of its own.
    "other caller": 2.4,
    "through the loop's functions": -1.7,
    "barrier": 2.1,  # Measured: 19 barriers in a branch of a loop, 75 behind one.
    "peers came later": 1.7,
}
"""Where a call stands that the loop does not make in every round. The distance in lines tells nothing from the second
line on (measured: between +0.6 and -0.5), nor does the name of a function: neither is a term."""
CERTAIN_BEHIND: frozenset[Support | Position] = frozenset({"source behind", "source leaves", "next line"})
"""Terms that place a call behind the loop whoever makes it."""
UNCLEAR = 0.5
"""Below this the calls tell nothing: both kinds are named."""
UNCLEAR_WITHOUT_CALLERS = 1.5
"""For a call behind the loop of which only the innermost line was recorded: whatever its operation is, the function's
caller may be in the loop."""


@dataclass(frozen=True, slots=True)
class Term:
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
