"""Classifies events by name: work of the host while its device may be idle, and the direction of copies."""

import re
from functools import lru_cache
from typing import Literal, NamedTuple, cast

from diagnostics.contract.files import patterns_beside

HostWork = Literal[
    "", "data", "garbage_collection", "recompilation", "kernel_loading", "allocator", "checkpoint", "input"
]
"""`input`: the host waits for outside input, as a server waits for requests. Empty = none of these."""
_WORK: dict[str, re.Pattern[str]] = patterns_beside(__file__)
_COPY = _WORK.pop("copy")


class HostCopy(NamedTuple):
    """The direction of a copy between host and device."""

    to_device: bool
    memory: Literal["pageable", "pinned", ""]
    """Kind of the host memory; empty = not recorded."""


@lru_cache(maxsize=4096)
def host_work(name: str) -> HostWork:
    """Return the kind of host work that an event of this name is."""
    return cast(HostWork, next((kind for kind, pattern in _WORK.items() if pattern.search(name)), ""))


def host_copy(name: str) -> HostCopy | None:
    """Return the direction of a copy of this name; None for copies between or within devices, and for fills."""
    match = _COPY.search(name)
    if match is None:
        return None
    origin, target = (match["from"] or match["from_word"][0], match["to"] or match["to_word"][0])
    memory: Literal["pageable", "pinned", ""] = ""
    if match["memory"]:
        memory = "pinned" if match["memory"] == "Pinned" else "pageable"
    return HostCopy(target == "D", memory) if origin != target else None
