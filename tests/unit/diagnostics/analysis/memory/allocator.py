"""The history that CUDA's allocator would keep of a training, taken from a real training on CPU.

Every storage that an operator makes is an allocation, with the stack that torch itself captures for snapshots
(`torch._C._profiler`); it is released when Python lets go of it. Segments of 2 MiB are reserved as they are needed.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._profiler import gather_traceback, symbolize_tracebacks  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

SEGMENT = 2 << 20
CLOCK_US = 1_700_000_000_000_000


class Allocator(TorchDispatchMode):
    """Keeps events in the form of a snapshot while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.alive: dict[int, dict[str, Any]] = {}
        """Address -> event."""
        self.allocated = self.reserved = 0
        self.owners: object = None
        """What is to live on."""
        self._next = 1 << 20

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        kept = {id(item.untyped_storage()) for item in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage.nbytes() and id(storage) not in kept and not hasattr(storage, "_seen_by_allocator"):
                self._allocated(storage)
        return result

    def annotate(self, name: str, begins: bool) -> None:
        """As `record_function` does."""
        stage = "START" if begins else "END"
        self.annotations.append({"name": name, "stage": stage, "device": 0, "time_us": self._now()})

    def snapshot(self, last: int | None = None) -> dict[str, Any]:
        """As `_snapshot()`; with `last` events, as a ring that is full."""
        blocks = [
            {"address": address, "size": event["size"], "requested_size": event["size"], "state": "active_allocated",
             "frames": event["frames"]}
            for address, event in self.alive.items()
        ]  # fmt: skip
        blocks.append({"address": 1, "size": self.reserved - self.allocated, "state": "inactive", "frames": []})
        segment = {"device": 0, "address": 1, "total_size": self.reserved, "segment_type": "large", "blocks": blocks}
        events = self.events if last is None else self.events[-last:]
        return {
            "segments": [segment],
            "device_traces": [events],
            "allocator_settings": {},
            "external_annotations": self.annotations,
        }

    def _allocated(self, storage: Any) -> None:
        storage._seen_by_allocator = True
        address, size = self._next, storage.nbytes()
        self._next += size
        if self.allocated + size > self.reserved:
            more = -(-(self.allocated + size - self.reserved) // SEGMENT) * SEGMENT
            self.reserved += more
            self._event("segment_alloc", address, more, [])
        frames = symbolize_tracebacks([gather_traceback(python=True, script=False, cpp=False)])[0]
        self.alive[address] = self._event("alloc", address, size, frames[2:])
        self.allocated += size
        weakref.finalize(storage, self._freed, address, size)

    def _freed(self, address: int, size: int) -> None:
        if self.alive.pop(address, None) is not None:
            self.allocated -= size
            self._event("free_requested", address, size, [])
            self._event("free_completed", address, size, [])

    def _event(self, action: str, address: int, size: int, frames: list[Any]) -> dict[str, Any]:
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self._now(), "frames": frames}
        self.events.append(event)
        return event

    def _now(self) -> int:
        return CLOCK_US + 10 * len(self.events)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (item for item in tree_iter(value) if isinstance(item, torch.Tensor))
