"""`did you mean ...?`: the names nearest to a mistyped one."""

from collections.abc import Iterable
from difflib import SequenceMatcher

_CLOSE = 0.6  # Similarity (difflib's ratio, 0 to 1) below which a name is not suggested.
_TIE = 0.1  # Names with a larger distance to the best match are omitted.


def nearest(word: str, candidates: Iterable[str], limit: int = 3, close: float = _CLOSE, dot: str = ".") -> list[str]:
    """Return candidates that resemble `word`, best first.

    `close` is the minimum similarity; `dot` separates the parts of a name (`/` for files in one folder, whose names are
    not split).
    """
    section, _, leaf = word.rpartition(dot)
    scores = {}
    for name in candidates:
        owner, _, key = name.rpartition(dot)
        # Compare the last parts if the section is equal or omitted, else the whole names.
        pair = (leaf, key) if section in ("", owner) else (word, name)
        scores[name] = SequenceMatcher(None, *pair).ratio()
    best = max(scores.values(), default=0.0)
    close_names = [name for name, score in scores.items() if score >= max(close, best - _TIE)]
    return sorted(close_names, key=lambda name: (-scores[name], name))[:limit]


def did_you_mean(word: str, candidates: Iterable[str], prefix: str = "") -> str:
    """Return `did you mean train.steps?`, or an empty string if no name is close; `prefix` may be `strategy=`."""
    names = nearest(word, candidates)
    return f"did you mean {' or '.join(prefix + name for name in names)}?" if names else ""
