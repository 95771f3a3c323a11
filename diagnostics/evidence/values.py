"""Numbers in untrusted records: a plausible one as a number, anything else as None."""

import re
from typing import Annotated

import msgspec

_DECIMAL = re.compile(r"-?\d{1,19}", re.ASCII)
MOST_BYTES = 1 << 50
MOST_RANKS = 2**18  # A larger number in a file is no number of ranks: the largest training jobs have some 100,000.
MAX_MEMBERS = 1 << 22
"""Maximum number of ranks in all groups of one rank, counted once per group; a file with more is not a job's."""
Rank = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
Size = Annotated[int, msgspec.Meta(ge=0, lt=MOST_BYTES)]
Time = Annotated[float, msgspec.Meta(ge=0, lt=1e11)]  # Seconds since 1970.
Number = Annotated[float, msgspec.Meta(ge=-1e21, le=1e21)]  # Finite, and no larger than anything that is measured.


def integer(value: object, low: int = -(1 << 62), end: int = 1 << 62) -> int | None:
    """Return an integer from `low` up to, not including, `end`; it may be written as a text."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value < end else None


def size(value: object) -> int | None:
    """Return a number of bytes or of other things in memory."""
    return integer(value, 0, MOST_BYTES)


def seconds(value: object) -> float | None:
    """Return seconds since 1970, which elastic writes as a text."""
    try:
        number = float(value) if isinstance(value, int | float | str) else -1.0
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 1e11 else None
