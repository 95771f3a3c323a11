"""Loads untrusted YAML: plain values, in memory and time that are bounded by what it describes.

One pass over the events of the parser comes first. It counts the nodes with aliases expanded, as a kilobyte of aliases
of aliases describes more than any memory holds, and the depth, at which the C composer overflows its stack.
"""

from collections.abc import Iterable
from typing import Any

from diagnostics.evidence.limits import Limits

MOST_NODES = 100_000  # Maximum number of nodes with aliases expanded. A dtk configuration has about 200.
_NUMBER_LENGTH = 400
"""Characters of a number: the longest float has 325. YAML 1.1 reads `1:00:00` in time quadratic in its length."""


def loads(data: bytes, limits: Limits) -> Any:
    """Load one document of plain values; ValueError if it is damaged, nested too deeply, or describes too much."""
    import yaml  # Here, as it costs a diagnosis without a run folder a tenth of its start.

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check(yaml.parse(data, Loader=loader), limits.depth)
        return yaml.load(data, Loader=loader)  # noqa: S506 - a safe one
    except yaml.YAMLError as problem:
        raise ValueError(str(problem)) from problem
    except (RecursionError, OverflowError, UnicodeError) as problem:
        raise ValueError(f"damaged YAML: {type(problem).__name__}") from problem


def _check(events: Iterable[Any], depth: int) -> None:
    """Raise `ValueError` if loading would cost out of proportion; never recurses."""
    import yaml

    anchors: dict[str, int] = {}
    open_: list[list[Any]] = [[None, 0]]  # Anchor and size of each collection that has begun.
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append([event.anchor, 1])
            anchors.pop(event.anchor or "", None)
            if len(open_) > depth:
                raise ValueError(f"refused: nested over {depth} levels")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise ValueError("refused: it refers to itself")
            anchor, size = None, anchors[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
            if len(event.value) > _NUMBER_LENGTH and event.implicit[0] and event.value[0] in "+-.0123456789":
                raise ValueError("refused: a number without end")
        else:
            continue
        if anchor is not None:
            anchors[anchor] = size
        open_[-1][1] += size
        if open_[-1][1] > MOST_NODES:
            raise ValueError("refused: it describes too much")
