"""Named regions of a step: `with region("forward"):` marks NVTX, the profiler and the heartbeat together.
Without observers, which are installed once before training, `region` and `communication` return a null context.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol


@dataclass(slots=True, eq=False)
class Region:
    """One open interval. `op`, `size_bytes` and `group` are set for communication only."""

    name: str
    op: str | None = None
    size_bytes: int = 0
    group: str = ""
    place: Mapping[str, int] = field(default_factory=dict)
    """Part of the model and the batch that the region works on: `stage`, `micro_batch`."""
    parent: "Region | None" = None

    def __enter__(self) -> "Region":
        global _current
        self.parent, _current = _current, self
        for observer in _observers:
            try:
                observer.enter(self)
            except Exception as problem:
                _remove(observer, problem)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _current, _failed_in
        if error is not None and _failed_in is None:
            _failed_in = self.name
        for observer in reversed(_observers):
            try:
                observer.exit(self)
            except Exception as problem:
                _remove(observer, problem)
        _current = self.parent


class Observer(Protocol):
    """Notified of every region on this rank. Must be fast; an observer that raises is removed and reported."""

    def enter(self, region: Region) -> None:
        """Handle the start of the region."""

    def exit(self, region: Region) -> None:
        """Handle the end of the region; `region.parent` is then the innermost open region again."""


_OFF: AbstractContextManager[None] = nullcontext()
_observers: tuple[Observer, ...] = ()
_current: Region | None = None
_failed_in: str | None = None
_report: Callable[[str, object], None] | None = None


def region(name: str, **place: int) -> AbstractContextManager[object]:
    """Return a context manager for a compute or host region: `forward`, `backward`, `optimizer`, `data`, ...

    `place` is the part that it works on if there are several: pipeline `stage`, `micro_batch`.
    """
    return Region(name, place=place) if _observers else _OFF


def communication(op: str, size_bytes: int, group: str) -> AbstractContextManager[object]:
    """Return a context manager for the region of a collective; `group` is a mesh dimension, or a purpose: `control`.

    `size_bytes` are those of the full (largest) buffer on this rank: the reduced tensor of an all_reduce, the output of
    an all_gather, the input of a reduce_scatter.
    """
    return Region(f"{op} {size_bytes} B {group}", op, size_bytes, group) if _observers else _OFF


def observe(observers: Iterable[Observer], report: Callable[[str, object], None] | None = None) -> None:
    """Install the observers of this process.

    They are called in this order; none switches regions off. `report` gets topic and exception of a removed one.
    """
    global _observers, _report
    _observers, _report = tuple(observers), report


def _remove(observer: Observer, problem: Exception) -> None:
    """Remove an observer that failed, so that it affects neither this step nor any later region."""
    global _observers
    _observers = tuple(other for other in _observers if other is not observer)
    if _report is not None:
        _report(f"record: {type(observer).__name__}", problem)


def observed() -> bool:
    """Whether observers are installed. Strategies use it to keep the library's own fast path otherwise."""
    return bool(_observers)


def current() -> Region | None:
    """Return the innermost open region, or None if there is none or there are no observers."""
    return _current


def failed_in() -> str | None:
    """Return the innermost region that an exception left first, for the error report; None if there is none."""
    return _failed_in
