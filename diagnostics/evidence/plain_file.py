"""Large files of plain values, as pickle or as JSON: the one way into dumps and snapshots."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from diagnostics.evidence import safe_pickle
from diagnostics.evidence.limits import Limits, whole

_Built = TypeVar("_Built")


def load(path: Path, limits: Limits, build: Callable[[dict[str, Any]], _Built], what: str) -> _Built:
    """Decode a file whose value is a dict, and build something from it.

    Args:
        path: plain or gzip; JSON by its first character.
        limits: on untrusted files.
        build: takes the dict; its values may be of any type, so what it raises over them counts as damage.
        what: what the file is, for messages.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, too large or too deep, or refused by `build`.
    """
    data = whole(path, limits)
    if not data.strip():
        raise ValueError("the file is empty")
    try:
        value = msgspec.json.decode(data) if data.lstrip()[:1] == b"{" else safe_pickle.loads(data, limits)
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__} where a {what} is a dict")
        return build(value)
    except msgspec.DecodeError as problem:
        raise ValueError(f"damaged JSON: {problem}") from problem
    except RecursionError as problem:
        raise ValueError(f"nested over {limits.depth} levels") from problem
    except (TypeError, OverflowError, MemoryError, UnicodeError, AttributeError) as problem:
        raise ValueError(f"damaged {what}: {type(problem).__name__}") from problem
