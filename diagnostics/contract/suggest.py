"""`did you mean ...?`: the names nearest to a mistyped one."""

from collections.abc import Iterable
from difflib import SequenceMatcher

_CLOSE = 0.6  # Similarity (difflib's ratio, 0 to 1) below which a name is no suggestion.
_TIE = 0.1  # Names that are this much worse than the best are not worth showing.


def nearest(word: str, candidates: Iterable[str], limit: int = 3, close: float = _CLOSE, dot: str = ".") -> list[str]:
    """Return candidates that resemble `word`, best first.

    Args:
        word: what was typed, maybe with dots.
        candidates: what exists.
        limit: at most that many.
        close: similarity from which on a name counts.
        dot: what stands between the parts of a name; `/` for files of one folder, whose names are wholes.
    """
    section, _, leaf = word.rpartition(dot)
    scores = {}
    for name in candidates:
        owner, _, key = name.rpartition(dot)
        # Of the last parts when the section is the same or was left out, else of the whole.
        pair = (leaf, key) if section in ("", owner) else (word, name)
        scores[name] = SequenceMatcher(None, *pair).ratio()
    best = max(scores.values(), default=0.0)
    near = [name for name, score in scores.items() if score >= max(close, best - _TIE)]
    return sorted(near, key=lambda name: (-scores[name], name))[:limit]


def did_you_mean(word: str, candidates: Iterable[str], prefix: str = "") -> str:
    """Return `did you mean train.steps?`, or nothing when no name is near; `prefix` may be `strategy=`."""
    names = nearest(word, candidates)
    return f"did you mean {' or '.join(prefix + name for name in names)}?" if names else ""
