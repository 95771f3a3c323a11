"""What a host does while its device may stand idle, and what a copy moves where: told by the names of events."""

import re
from functools import lru_cache
from typing import Literal, NamedTuple

HostWork = Literal[
    "", "data", "garbage_collection", "recompilation", "kernel_loading", "allocator", "checkpoint", "input"
]
"""`input`: it waits for something from outside, as a server waits for requests. Empty = none of these."""
_WORK: dict[HostWork, re.Pattern[str]] = {
    "data": re.compile(
        r"^enumerate\(DataLoader\)|__next__$|^data$|data_?load|(?:load|next|fetch|wait_for)_batch", re.IGNORECASE
    ),
    "garbage_collection": re.compile(r"^Python GC$|^<built-in function collect>$|^garbage_collection$|^gc\.collect"),
    # dynamo_timed, or with stacks the functions that compile a frame, a graph or a kernel.
    "recompilation": re.compile(
        r"\(dynamo_timed\)$|^(?:dynamo|entire_frame_compile|backend_compile)$|"
        r"torch/_dynamo/convert_frame\.py\(\d+\): (?:__call__|_compile)|"
        r"torch/_inductor/compile_fx\.py\(\d+\): \w*compile\w*$|triton/compiler/compiler\.py\(\d+\): compile$"
    ),
    "kernel_loading": re.compile(r"^(?:cu|cuda|hip)(?:Module|Library)Load|^cuModuleGetFunction|^hipModuleGetFunction"),
    "allocator": re.compile(
        r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|HostRegister|HostUnregister)|"
        r"^(?:cu|hip)Mem(?:Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|Alloc|Free|HostAlloc)"
    ),
    "checkpoint": re.compile(r"^checkpoint|save_checkpoint|torch/serialization\.py\(\d+\): save$"),
    "input": re.compile(
        r"(?:queue|selectors|socket|connection|zmq/\S+)\.py\(\d+\): "
        r"(?:get|select|accept|recv\w*|_recv\w*|poll|_poll)$|"
        r"^<built-in (?:method|function) (?:recv\w*|accept|poll|select|epoll_wait)\b"
    ),
}
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
    return next((kind for kind, pattern in _WORK.items() if pattern.search(name)), "")


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
