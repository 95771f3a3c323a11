"""What a host does while its device may be idle, and between which memories a copy moves, by the names of events."""

import re
from functools import lru_cache
from typing import Literal, NamedTuple, cast

from diagnostics.contract.files import patterns_beside

HostWork = Literal[
    "", "data", "garbage_collection", "recompilation", "kernel_loading", "allocator", "checkpoint", "input"
]
"""`input`: it waits for something from outside, as a server waits for requests. Empty = none of these."""
_WORK: dict[str, re.Pattern[str]] = patterns_beside(__file__)
_COPY = re.compile(
    r"(?:\b(?P<from>H|D)to(?P<to>H|D)\b|Copy(?P<from_word>Host|Device)To(?P<to_word>Host|Device))"
    r"(?:.*?\b(?P<memory>Pageable|Pinned)\b)?"
)


class HostCopy(NamedTuple):
    """Where a copy between host and device goes."""

    to_device: bool
    memory: Literal["pageable", "pinned", ""]
    """Of the host; empty = not recorded."""


@lru_cache(maxsize=4096)
def host_work(name: str) -> HostWork:
    """Return what a host does in an event of this name."""
    return cast(HostWork, next((kind for kind, pattern in _WORK.items() if pattern.search(name)), ""))


def host_copy(name: str) -> HostCopy | None:
    """Return where a copy of this name goes; None for copies within a device or between devices, and for fills."""
    match = _COPY.search(name)
    if match is None:
        return None
    origin, target = (match["from"] or match["from_word"][0], match["to"] or match["to_word"][0])
    memory: Literal["pageable", "pinned", ""] = ""
    if match["memory"]:
        memory = "pinned" if match["memory"] == "Pinned" else "pageable"
    return HostCopy(target == "D", memory) if origin != target else None
