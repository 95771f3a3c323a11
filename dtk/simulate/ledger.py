"""The memory ledger of (fake) tensors: what each storage holds, when, and since which moment of the step."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from diagnostics.contract.grouping import grouped

_Mode: Any = TorchDispatchMode  # torch leaves it untyped
_PLAIN = (Tensor, Parameter, FakeTensor)
_READ = torch.ops.aten._local_scalar_dense.default
_WHOLE_NUMBERS = (torch.int32, torch.int64)
_READERS = ("torch.optim.", "dtk.train.")
"""Modules whose reading of a value is answered with 1: an optimizer's count of steps, "the gradients are finite"."""

Place = tuple[str, int]  # Region of the step, and block of the model.
Event = tuple[int, int, Place]  # Entry, change in bytes, place. Entry -1 changes nothing: a place begins.
ByCategory = dict[str, int]  # Category -> bytes.
Part = tuple[str, str]  # Region of the step, and part of the model.
Parts = dict[Part, ByCategory]


class Pause:
    """A reentrant context in which new storages are ignored, as they are not this rank's memory."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1


class Ledger(_Mode):  # type: ignore[misc]
    """Records every storage that operations return.

    `events` are (entry, change in bytes, place) in order; `guessed` and `marked` say what an entry is: the first by the
    moment in which it was made, the second by what it turned out to be.
    """

    def __init__(self, where: Callable[[], Place], guess: Callable[[Tensor], str]) -> None:
        super().__init__()
        self.where = where
        self.guess = guess
        self.events: list[Event] = []
        self.guessed: list[str] = []
        self.marked: dict[int, str] = {}
        self.host_numbers = False
        """Whether new integer tensors have values: DDP's reducer writes its bookkeeping past the dispatcher."""
        self.pause = Pause()
        self._sizes: list[int] = []
        self._entries: dict[int, tuple[weakref.ref[Any], int]] = {}  # Address of a storage that lives -> its entry.
        self._resize: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t not in _PLAIN for t in types):
            return NotImplemented
        kwargs = kwargs or {}
        if func is _READ and isinstance(args[0], FakeTensor) and _by_reader():
            dtype = args[0].dtype
            return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1
        with unset_fake_temporarily() if self._is_real(types, args, kwargs) else nullcontext():
            out = func(*args, **kwargs)
        if func.namespace == torch.ops.fsdp.name:
            # Mark the tensors of FSDP2's own operations, found by name, so that a torch without them only knows less.
            name = func._schema.name.removeprefix("fsdp::")
            if name == "all_gather_copy_in":
                self.mark([*args[0], args[1]], "gathered parameters", weak=True)
            elif name == "split_with_sizes_copy":
                self.mark(kwargs["out"], "gathered parameters")
            elif name == "chunk_cat":
                self.mark(args[0], "gradients")
                self.mark([kwargs["out"]], "buckets")
        if not self.pause.depth:
            self._enter_all(out)
        return out

    def __enter__(self) -> "Ledger":
        self._resize = torch.UntypedStorage.resize_
        resize, ledger = self._resize, self

        def resized(storage: Any, size: int) -> Any:
            out = resize(storage, size)
            ledger.resized(storage, int(size))
            return out

        torch.UntypedStorage.resize_ = resized  # type: ignore[assignment]
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def touch(self) -> None:
        """Record the start of a place: what is held there counts, even if nothing is allocated in it."""
        self.events.append((-1, 0, self.where()))

    def mark(self, tensors: Iterable[Tensor], what: str, weak: bool = False) -> None:
        """Set the category of storages; with `weak` only of those without one."""
        for tensor in tensors:
            _, entry = self._entries.get(tensor.untyped_storage()._cdata, (None, -1))
            if entry >= 0 and not (weak and entry in self.marked):
                self.marked[entry] = what

    def category(self, entry: int) -> str:
        """Return the category of an entry."""
        return self.marked.get(entry, self.guessed[entry])

    def resized(self, storage: Any, size: int) -> None:
        """Record that a storage freed its memory or got it back."""
        _, entry = self._entries.get(storage._cdata, (None, -1))
        if entry >= 0 and size != self._sizes[entry]:
            self.events.append((entry, size - self._sizes[entry], self.where()))
            self._sizes[entry] = size

    def _enter_all(self, out: Any) -> None:
        if isinstance(out, list | tuple):
            for each in out:
                self._enter_all(each)
        elif isinstance(out, Tensor) and (key := (storage := out.untyped_storage())._cdata) not in self._entries:
            size, entry = storage.nbytes(), len(self._sizes)
            self._entries[key] = weakref.ref(storage, partial(self._freed, key, entry)), entry
            self._sizes.append(size)
            self.guessed.append(self.guess(out))
            self.events.append((entry, size, self.where()))

    def _freed(self, key: int, entry: int, _: Any) -> None:
        if self._entries.get(key, (None, -1))[1] == entry:  # Not of another storage at the same address.
            del self._entries[key]
        if size := self._sizes[entry]:
            self.events.append((entry, -size, self.where()))
            self._sizes[entry] = 0

    def _is_real(self, types: Any, args: Any, kwargs: Any) -> bool:
        """Whether an operation is on tensors with values, or makes such."""
        if types:
            return False
        values = [value for arg in args for value in (arg if isinstance(arg, list | tuple) else (arg,))]
        tensors = [value for value in values if isinstance(value, Tensor)]
        if tensors:
            return not any(tensor.is_meta for tensor in tensors)
        return self.host_numbers and kwargs.get("dtype") in _WHOLE_NUMBERS


def highest(events: list[Event], begin: int, category: Callable[[int], str], part: Callable[[Place], Part]) -> Parts:
    """Return what was held at the peak of each part of the step.

    Events before `begin` only determine what is held then; `part` returns the part of the step that a place belongs to.
    """
    held_bytes, peaks = 0, dict[Part, tuple[int, int]]()
    for number, (_, change, place) in enumerate(events):
        held_bytes += change
        if number >= begin and held_bytes > peaks.get(key := part(place), (-1, 0))[0]:
            peaks[key] = held_bytes, number
    parts = grouped((number, key) for key, (_, number) in peaks.items())
    held_at: dict[Part, ByCategory] = {}
    by_category: Counter[str] = Counter()
    for number, (entry, change, _) in enumerate(events):
        if change:
            by_category[category(entry)] += change
        for key in parts.get(number, ()):
            held_at[key] = {name: size for name, size in by_category.items() if size}
    return held_at


def _by_reader() -> bool:
    """Return whether an optimizer or the training loop reads a value, not the model."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_READERS):
            return True
        if not name.startswith(("torch", "contextlib")):
            return False
        frame = frame.f_back
    return False
