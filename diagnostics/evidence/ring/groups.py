"""Groups of ranks as the ring writes them: their members in a short text, and a key that is theirs alone."""

import itertools
import re

MOST_RANKS = 1_000_000
"""A larger number in a file is no number of ranks: the largest training jobs have some 100,000."""
MAX_MEMBERS = 1 << 22
"""Of all groups of one rank together, each time that a group names them; with more it is no job's file."""
_RUN = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?(?:/(\d{1,7}))?", re.ASCII)


def group_key(name: str, ranks: tuple[int, ...], generation: int) -> str:
    """Return a name for a group that is the same on all its ranks and unique to the group."""
    from hashlib import blake2b  # Here, as it loads OpenSSL, which a diagnosis without rings does not need.

    return f"{generation}:{name}:{blake2b(repr(ranks).encode(), digest_size=4).hexdigest()}"


def parse_ranks(text: str, limit: int = MAX_MEMBERS) -> tuple[int, ...]:
    """`0-3,8,16-48/8` -> 0, 1, 2, 3, 8, 16, 24, ... What is no list of ranks, or names more than `limit`, is empty."""
    ranks: list[int] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        if match is None:
            return ()
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step < 1 or last >= MOST_RANKS or (last - first) // step + len(ranks) >= limit:
            return ()
        ranks.extend(range(first, last + 1, step))
    return tuple(ranks)


def format_ranks(ranks: tuple[int, ...]) -> str:
    """0, 1, 2, 3, 8 -> `0-3,8`; a run with a stride is `0-56/8`."""
    step = ranks[1] - ranks[0] if len(ranks) > 2 else 1
    if step > 1 and all(b - a == step for a, b in itertools.pairwise(ranks)):
        return f"{ranks[0]}-{ranks[-1]}/{step}"
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
