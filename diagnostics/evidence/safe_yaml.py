"""Loads YAML that users or others wrote: plain values, in memory and time that are bounded by what it describes.

One pass over the events of the parser comes first. It counts the nodes with aliases expanded, as a kilobyte of aliases
of aliases describes more than any memory holds, and the depth, at which the C composer overflows its stack.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diagnostics.contract.files import read_record
from diagnostics.evidence.limits import Limits

MOST_NODES = 100_000  # Maximum number of nodes with aliases expanded. A dtk configuration has about 200.
_NUMBER_LENGTH = 400
"""Characters of a number: the longest float has 325. YAML 1.1 reads `1:00:00` in time quadratic in its length."""


def text_of(path: Path) -> str:
    """Return the text of a file that another loader is to read; OSError or ValueError as for `read_record`, `loads`."""
    data = read_record(path)
    loads(data, Limits())
    return data.decode()


def loads(data: bytes, limits: Limits, *, several: bool = False) -> Any:
    """Load plain values, a list of `several` documents; ValueError if damaged, too deep, too large or ambiguous."""
    import yaml  # Here, as it costs a diagnosis without a run folder a tenth of its start.

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check(yaml.parse(data, Loader=loader), limits.depth)
        return list(yaml.load_all(data, loader)) if several else yaml.load(data, loader)  # noqa: S506 - a safe one
    except yaml.YAMLError as problem:
        mark, what = getattr(problem, "problem_mark", None), getattr(problem, "problem", None) or str(problem)
        at = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{at}not valid YAML ({' '.join(what.split())[:200]})") from problem
    except (RecursionError, OverflowError, UnicodeError) as problem:
        raise ValueError(f"damaged YAML: {type(problem).__name__}") from problem


def _check(events: Iterable[Any], depth: int) -> None:
    """Raise an error if loading would cost out of proportion, or for a key that is there twice; never recurses."""
    import yaml

    anchors: dict[str, int] = {}
    # Of each collection that has begun: anchor, size, items, and the keys of a mapping.
    open_: list[list[Any]] = [[None, 0, 0, None]]
    for event in events:
        open_[-1][2] += isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append([event.anchor, 1, 0, set() if isinstance(event, yaml.MappingStartEvent) else None])
            anchors.pop(event.anchor or "", None)
            if len(open_) > depth:
                raise ValueError(f"refused: nested over {depth} levels")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size, _, _ = open_.pop()
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise ValueError("refused: it refers to itself")
            anchor, size = None, anchors[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
            if len(event.value) > _NUMBER_LENGTH and event.implicit[0] and event.value[0] in "+-.0123456789":
                raise ValueError("refused: a number without end")
            keys = open_[-1][3]
            if keys is not None and open_[-1][2] % 2 and event.value != "<<":
                if event.value in keys:
                    twice = f'the key "{event.value[:60]}" is there twice'
                    raise yaml.constructor.ConstructorError(None, None, twice, event.start_mark)  # type: ignore[arg-type]
                keys.add(event.value)
        else:
            continue
        if anchor is not None:
            anchors[anchor] = size
        open_[-1][1] += size
        if open_[-1][1] > MOST_NODES:
            raise ValueError("refused: it describes too much")
