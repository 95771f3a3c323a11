"""`did you mean ...?`: the names nearest to a mistyped one."""

from collections.abc import Iterable
from difflib import SequenceMatcher

_CLOSE = 0.6  # Similarity (difflib's ratio, 0 to 1) below which a name is not suggested.
_BEGINS = 0.2  # What a name gains that begins with the word: of h100_sxm and h200, `h100` means the first.
_SHORT = 3  # Letters of a word of which a different first letter makes another one: `gpu` is not a slip for cpu.
_TIE = 0.1  # Names with a larger distance to the best match are omitted.


def nearest(word: str, candidates: Iterable[str], limit: int = 3, close: float = _CLOSE, dot: str = ".") -> list[str]:
    """Return candidates that resemble `word`, best first.

    `close` is the minimum similarity; `dot` separates the parts of a name (`/` for files, which are not split).
    """
    section, _, leaf = word.rpartition(dot)
    scores = {}
    for name in candidates:
        owner, _, key = name.rpartition(dot)
        # Compare the last parts if the section is equal or omitted, else the whole names.
        pair = (leaf, key) if section in ("", owner) else (word, name)
        if len(pair[0]) > _SHORT or pair[0][:1] == pair[1][:1]:
            scores[name] = SequenceMatcher(None, *pair).ratio() + _BEGINS * pair[1].startswith(pair[0])
    least = max(close, max(scores.values(), default=0.0) - _TIE)
    return sorted((name for name in scores if scores[name] >= least), key=lambda name: (-scores[name], name))[:limit]


def did_you_mean(word: str, candidates: Iterable[str], prefix: str = "") -> str:
    """Return `did you mean train.steps?`, or an empty string if no name is close; `prefix` may be `strategy=`."""
    names = nearest(word, candidates)
    return f"did you mean {' or '.join(prefix + name for name in names)}?" if names else ""
