"""Offloaded training states: optimizer states in pinned host memory or a file, parameter shards in a file.

An update accesses states through windows: copies that one thread loads before use and another writes back afterwards.
ZeRO-Offload (Ren et al. 2021) and ZeRO-Infinity (Rajbhandari et al. 2021) with the means of the operating system: an
unnamed file, `preadv` and `pwritev`. Independent of strategies.
"""

import errno
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics.contract.formatting import bytes_text
from dtk.errors import DtkError

DROP, AHEAD = mmap.MADV_DONTNEED, mmap.MADV_WILLNEED
FOR_READING, FOR_WRITING = 22, 23
"""MADV_POPULATE_READ and MADV_POPULATE_WRITE of Linux 5.14: pages are there afterwards, or it is an error."""
Build = Callable[..., Optimizer]  # Builds an optimizer from parameter groups.


class Swap:
    """Memory in an unnamed file, which the system frees however the process ends.

    Each tensor starts on a new page. DtkError if the folder cannot be written, or its disk has too little space.
    """

    def __init__(self, folder: str, sizes_bytes: Iterable[int]) -> None:
        needed = sum(map(_pages, sizes_bytes))
        size = needed or mmap.PAGESIZE
        try:
            # tempfile uses O_TMPFILE if the file system supports it, and otherwise unlinks the name immediately.
            self.file = tempfile.TemporaryFile(dir=folder, prefix="dtk-offload-", buffering=0)  # noqa: SIM115
            os.posix_fallocate(self.file.fileno(), 0, size)  # Later a full disk would raise a signal, not an error.
            self.map = mmap.mmap(self.file.fileno(), size)
        except OSError as error:
            what = f"strategy.offload_folder={folder} cannot hold states{f' of {bytes_text(needed)}' if needed else ''}"
            raise DtkError(what, (error.strerror or str(error)).lower(), "name a folder on another disk") from error
        self.folder = folder
        self.begin = torch.frombuffer(self.map, dtype=torch.uint8).data_ptr()
        self.used = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor of zeros that is mapped to the file; accessing it reads the file."""
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        if not tensor.numel():
            return torch.empty(shape, dtype=dtype)
        start, self.used = self.used, self.used + _pages(tensor.nbytes)
        return torch.frombuffer(self.map, dtype=dtype, count=tensor.numel(), offset=start).view(tensor.shape)

    def read(self, home: Tensor, into: Tensor) -> None:
        """Copy a tensor of the file into memory by explicit reads: page faults of a mapping would stall the update."""
        self._move(os.preadv, home, into)
        self.advise(home, DROP)

    def write(self, source: Tensor, home: Tensor) -> None:
        """Copy memory into a tensor of the file; pages that are written as a whole need not be read before."""
        self._move(os.pwritev, home, source)

    def advise(self, home: Tensor, what: int) -> None:
        """Tell the operating system to DROP the pages of a tensor that were touched, or to read it AHEAD.

        FOR_READING or FOR_WRITING: before that is done. What a failing disk does not give is then a DtkError, where
        the access itself would end the process by a signal (SIGBUS).
        """
        if home.numel():
            try:
                self.map.madvise(what, home.data_ptr() - self.begin, _pages(home.nbytes))
            except OSError as error:
                if error.errno != errno.EINVAL:  # An older kernel.
                    raise self._lost("its pages cannot be read") from error

    def _move(self, call: Callable[..., int], home: Tensor, memory: Tensor) -> None:
        data: Any = memory.reshape(-1).view(torch.uint8).numpy()
        view, start = memoryview(data), home.data_ptr() - self.begin
        try:
            while view.nbytes:  # One call transfers at most 2 GiB.
                if not (moved := call(self.file.fileno(), [view], start)):
                    raise OSError("the file was truncated")
                view, start = view[moved:], start + moved
        except OSError as error:  # The space is taken, but some file systems find another place for each write.
            raise self._lost((error.strerror or str(error)).lower()) from error

    def _lost(self, why: str) -> DtkError:
        what = f"strategy.offload_folder={self.folder} can no longer be read or written"
        return DtkError(what, why, "resume from the newest checkpoint with a folder on another disk")


class Tier:
    """The place of optimizer states between updates; the states of at most three parameters are in memory.

    Without a folder on a disk they are in pinned host memory.
    """

    def __init__(self, device: torch.device, folder: str | None) -> None:
        self.device, self.folder = device, folder
        self.swap: Swap | None = None
        self.shards: Swap | None = None
        """Holds the shards of the parameters if they are in a file too."""
        self.homes: dict[Tensor, dict[str, Tensor]] = {}
        """Parameter -> field of its state -> this rank's part, outside the device."""
        self.read_bytes = self.written_bytes = 0
        self._filled: set[Tensor] = set()
        self._following: dict[Tensor, Tensor] = {}
        """Parameter -> the parameter that was updated after it in the last step."""
        self._last: Tensor | None = None
        self._arriving: dict[Tensor, Future[dict[str, Tensor]]] = {}
        self._leaving: deque[Future[None]] = deque()
        self._threads = [ThreadPoolExecutor(1, f"dtk-page-{way}") for way in ("in", "out")]
        cuda = device.type == "cuda"
        self._streams = [torch.cuda.Stream(device) if cuda else None for _ in self._threads]  # type: ignore[no-untyped-call]

    def paged(self, build: Build) -> Build:
        """Wrap `build` so that its optimizers update one parameter at a time, with its states in a window."""

        def make(groups: Any, **more: Any) -> Optimizer:
            optimizer = build(groups, **more)
            optimizer.step = partial(self._step, optimizer, optimizer.step)  # type: ignore[method-assign, assignment]
            return optimizer

        return make

    def reserve(self, parameters: Sequence[Tensor], build: Build) -> None:
        """Allocate all states before the first step.

        A trial step of the optimizer that `build` returns determines the states' fields. DtkError if space is lacking.
        """
        fields = state_fields(build)
        sizes = [_local(p).numel() * dtype.itemsize for p in parameters for dtype in fields.values()]
        self.swap = None if self.folder is None else Swap(self.folder, sizes)
        take = self.swap.take if self.swap else partial(torch.zeros, pin_memory=self.device.type == "cuda")
        for p in parameters:
            self.homes[p] = {field: take(_local(p).shape, dtype=dtype) for field, dtype in fields.items()}

    def room(self, parameter: Tensor, field: str) -> Tensor:
        """Return the tensor to load a checkpoint into, shaped like the parameter, in the memory of that state."""
        tensor = torch.zeros_like(parameter, requires_grad=False)
        if (home := self.homes.get(parameter, {}).get(field)) is not None:
            _local(tensor).data = home
            self._filled.add(parameter)
        return tensor

    def settle(self) -> None:
        """Wait until all states are written back; call it after a step, before anything else reads them."""
        while self._leaving:
            self._leaving.popleft().result()
        self._last = None

    def in_memory(self, part: Tensor) -> Tensor:
        """Return a tensor that needs no disk: a copy of one mapped to a file; DtkError if the disk fails to give it."""
        for swap in (self.swap, self.shards):
            if swap is not None and part.numel() and 0 <= part.data_ptr() - swap.begin < len(swap.map):
                copy = torch.empty_like(part)
                swap.read(part, copy)
                return copy
        return part

    def move_parameters(self, units: Sequence[Sequence[Any]]) -> None:
        """Move the shards of fully_shard's units (FSDPParams) into a file; DtkError if there is too little space."""
        assert self.folder is not None
        data = [[p._sharded_param_data for p in unit] for unit in units]
        self.shards = Swap(self.folder, [shard.nbytes for unit in data for shard in unit])
        for p in (p for unit in units for p in unit):
            memory, part = p._sharded_param_data, p.sharded_param._local_tensor
            p._sharded_param_data = home = self.shards.take(memory.shape, memory.dtype)
            p.sharded_param._local_tensor = home.as_strided(part.size(), part.stride())  # Without padding.
            home.copy_(memory)
            self.shards.advise(home, DROP)

    def about_to_gather(self, unit: Sequence[Any]) -> None:
        """Bring a unit's shards, which are copied next, into memory."""
        assert self.shards is not None
        for p in unit:
            self.shards.advise(p._sharded_param_data, FOR_READING)

    def gathered(self, unit: Sequence[Any], following: Sequence[Any]) -> None:
        """Drop a unit's shards, which were copied, and prefetch those of the next unit."""
        assert self.shards is not None
        for p in unit:
            self.read_bytes += p._sharded_param_data.nbytes
            self.shards.advise(p._sharded_param_data, DROP)
        for p in following:
            self.shards.advise(p._sharded_param_data, AHEAD)

    def figures(self) -> dict[str, float]:
        """Return the bytes that were moved to and from the tier since the start."""
        return {"offload_read_bytes": float(self.read_bytes), "offload_written_bytes": float(self.written_bytes)}

    def _step(self, optimizer: Optimizer, update: Callable[[], Any], closure: None = None) -> None:
        """Update every parameter with a gradient separately: the optimizer sees one group with one parameter."""
        groups = optimizer.param_groups
        whole = [(group, group["params"]) for group in groups]
        try:
            for group, p in ((group, p) for group, parameters in whole for p in parameters if p.grad is not None):
                # Replace the states of a parameter by their windows, and prefetch those of the next parameter.
                if p in self._filled:
                    windows = self._arriving.pop(p, None) or self._threads[0].submit(self._read, p)
                    for field, window in windows.result().items():
                        self.read_bytes += window.nbytes
                        _local(optimizer.state[p][field]).data = window
                if self.shards is not None:
                    self.shards.advise(_local(p), FOR_WRITING)
                if self._last is not None:
                    self._following[self._last] = p
                self._last = p
                following = self._following.get(p, p)
                if following is not p and following in self._filled and following not in self._arriving:
                    self._arriving[following] = self._threads[0].submit(self._read, following)
                group["params"], optimizer.param_groups = [p], [group]
                update()
                self._leave(p, optimizer.state[p])
        finally:
            optimizer.param_groups = groups
            for group, parameters in whole:
                group["params"] = parameters

    def _leave(self, p: Tensor, state: dict[str, Any]) -> None:
        """Write the windows of a parameter back; at most one parameter's are in flight."""
        windows = {field: _local(state[field]).detach() for field in self.homes[p] if field in state}
        self._filled.add(p)
        while self._leaving:
            self._leaving.popleft().result()
        done = None if self._streams[1] is None else torch.cuda.current_stream(self.device).record_event()
        for field, window in windows.items():
            _local(state[field]).data = self.homes[p][field]
            self.written_bytes += window.nbytes
        if self.shards is not None:
            self.read_bytes += _local(p).nbytes
            self.written_bytes += _local(p).nbytes
        self._leaving.append(self._threads[1].submit(self._write, p, windows, done))

    def _read(self, p: Tensor) -> dict[str, Tensor]:
        windows = {}
        if self.shards is not None:
            self.shards.advise(_local(p), AHEAD)
        with _beside(self._streams[0]):
            for field, home in self.homes[p].items():
                memory = home
                if self.swap is not None:
                    memory = torch.empty_like(home, pin_memory=self.device.type == "cuda")
                    self.swap.read(home, memory)
                windows[field] = memory.to(self.device, non_blocking=True)
        return windows

    def _write(self, p: Tensor, windows: dict[str, Tensor], done: Any) -> None:
        with _beside(self._streams[1], done):
            for field, window in windows.items():
                if self.swap is None:
                    self.homes[p][field].copy_(window, non_blocking=True)
                else:
                    self.swap.write(window.cpu(), self.homes[p][field])
        windows.clear()  # A thread pool releases its arguments some time after the result is available.
        if self.shards is not None:
            self.shards.advise(_local(p), DROP)


def state_fields(build: Build) -> dict[str, torch.dtype]:
    """Return the dtypes of the state fields that have the parameter's shape, from a step on four zeros."""
    probe = nn.Parameter(torch.zeros(2, 2))
    probe.grad = torch.zeros_like(probe)
    optimizer = build([{"params": [probe], "weight_decay": 0.0}])
    optimizer.step()
    state = optimizer.state[probe].items()
    return {name: x.dtype for name, x in state if isinstance(x, Tensor) and x.shape == probe.shape}


@contextmanager
def _beside(stream: Any, after: Any = None) -> Iterator[None]:
    """Run on a CUDA stream after an event, and wait for it; without a stream run directly."""
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        if after is not None:
            stream.wait_event(after)
        yield
        stream.synchronize()


def _local(tensor: Tensor) -> Tensor:
    """Return the tensor object that holds this rank's part, so that its storage can be swapped."""
    with torch.no_grad():
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return, operator]


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
