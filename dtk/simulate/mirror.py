"""A process group without the other ranks: every collective ends at once, as if they all contributed what this
rank contributes. Knows the interface of `torch.distributed.ProcessGroup` and nothing of who calls it.

Values are thereby harmless rather than right: sums are world_size times this rank's, what only another rank
could know is zero. Tensors without data are left alone.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d_c
from torch.futures import Future

_Group: Any = dist.ProcessGroup
"""Without its types: torch declares several signatures per collective, of which it uses one."""


_BETWEEN = ("torch.", "dtk.record.", "dtk.preflight.")
"""Modules that a call passes through on its way here."""
Heard = Callable[[str, "MirrorGroup", list[Tensor]], None]
"""Operation in the field's words, group, full buffers: output of an all_gather, input of a reduce_scatter."""


class _Options:
    """Where torch notes what a group is called; gloo's has these fields."""

    group_name = ""
    global_ranks_in_group: Sequence[int] = ()


class _Received(dist.Work):
    """A finished receive that knows whom it came from."""

    def __init__(self, source: int) -> None:
        super().__init__()
        self.source = source

    def wait(self, timeout: Any = None) -> bool:
        """At once."""
        return True

    def _source_rank(self) -> int:
        return self.source


class MirrorGroup(_Group):  # type: ignore[misc]
    """One rank of `size`, alone in this process. Takes the place of gloo's group, so it has its constructor."""

    heard: ClassVar[Heard | None] = None
    """Told of every call that carries tensors."""
    group_name: Any = ""
    """Unique in this process."""
    group_desc = ""
    """What it is for."""
    supports_splitting = False
    supports_coalescing = False

    def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
        super().__init__(rank, size)
        self.store = store
        self.options = _Options()

    def _set_group_name(self, name: Any) -> None:
        self.group_name = name

    def _set_group_desc(self, desc: str) -> None:
        self.group_desc = desc

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce as if all ranks held the same: sums are multiplied by world_size, averages and extremes stay."""
        for tensor in listed(tensors):
            _reduce(tensor, opts, self.size())
        return self._ended("all_reduce", tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """Give the root the reduced values; the other ranks keep theirs."""
        for tensor in listed(tensors) if opts.rootRank == self.rank() else ():
            _reduce(tensor, opts, self.size())
        return self._ended("reduce", tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Keep this rank's values as those of the root; zero the tensors of objects that another rank would send."""
        frame: Any = sys._getframe(1) if opts.rootRank != self.rank() else None
        while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
            if frame.f_code.co_name == "broadcast_object_list":  # Sizes are never written on ranks that receive them.
                for tensor in listed(tensors):
                    _zero(tensor)
            frame = frame.f_back
        return self._ended("broadcast", tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Every part is a copy of ours."""
        return self._copies("all_gather", outputs, inputs)

    allgather_coalesced = allgather

    def _copies(self, op: str, outputs: Any, inputs: Any) -> Any:
        for parts, tensor in zip(outputs, inputs, strict=True):
            for part in parts:
                _copy(part, tensor)
        return self._ended(op, flat(outputs))

    def all_gather_single(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Each output, one or several, holds world_size copies of its input."""
        for output, tensor in zip(listed(outputs), listed(inputs), strict=True):
            if _has_data(output) and output.numel():  # The input may be a part of it.
                output.detach().view(self.size(), -1).copy_(tensor.detach().clone().view(1, -1))
            self._ended("all_gather", output)
        return _done(listed(outputs))

    _allgather_base = all_gather_single_coalesced = allgather_into_tensor_coalesced = all_gather_single

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give the root copies of this rank's values."""
        return self._copies("gather", outputs, inputs) if outputs else self._ended("gather", inputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give the root its own part, and the other ranks zeros."""
        for i, output in enumerate(outputs):
            _copy(output, inputs[i][self.rank()]) if inputs else _zero(output)
        return self._ended("scatter", outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce this rank's part of the input, as if all ranks held the same."""
        for output, parts in zip(outputs, inputs, strict=True):
            _copy(output, parts[self.rank()])
            _reduce(output, opts, self.size())
        return self._ended("reduce_scatter", outputs, flat(inputs))

    def reduce_scatter_single(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """As `reduce_scatter`, of tensors, one or several, in equal parts."""
        for output, tensor in zip(listed(outputs), listed(inputs), strict=True):
            if _has_data(output) and output.numel():
                _copy(output, tensor.detach().reshape(self.size(), -1)[self.rank()].view(output.shape))
                _reduce(output, opts, self.size())
            self._ended("reduce_scatter", output, tensor)
        return _done(listed(outputs))

    _reduce_scatter_base = reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced = reduce_scatter_single

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: Any = None, input_splits: Any = None, opts: Any = None
    ) -> Any:
        """Every rank sends us what we keep for ourselves, where sizes allow."""
        if output.shape == tensor.shape:
            _copy(output, tensor)
        else:
            _zero(output)
        return self._ended("all_to_all", output, tensor)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """As `all_to_all_single`, part by part."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self.all_to_all_single(output, tensor)
        return _done(list(outputs))

    def send(self, tensors: Any, destination: int, tag: int) -> Any:
        """Has arrived."""
        return self._ended("send", tensors)

    def recv(self, tensors: Any, source: int, tag: int) -> Any:
        """Return zeros."""
        for tensor in listed(tensors):
            _zero(tensor)
        return self._ended("recv", tensors)

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        """Return zeros, from the next rank."""
        self.recv(tensors, 0, tag)
        return _Received((self.rank() + 1) % self.size())

    def _ended(self, op: str, results: Any, buffers: Any = None) -> Any:
        """Report the call with its full buffers, by default the results, and return its finished work."""
        heard = type(self).heard
        if heard is not None:
            heard(op, self, listed(results if buffers is None else buffers))
        return _done(listed(results))

    def barrier(self, opts: Any = None) -> Any:
        """Nobody to wait for."""
        return _done([])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Nobody to wait for."""

    def _nothing(self, *_: Any) -> None:
        """Do nothing: nothing is open, and nobody else is there."""

    _start_coalescing = _set_sequence_number_for_group = _set_default_timeout = shutdown = abort = _nothing
    _end_coalescing = barrier

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def getBackendName(self) -> str:  # noqa: N802  torch asks for it.
        """Not gloo: torch would look for its devices."""
        return "simulated"

    def get_group_store(self) -> Any:
        """Return the store that the group was given at the start."""
        return self.store


def listed(tensors: Any) -> list[Tensor]:
    """Return one tensor, or several, as a list."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def flat(lists: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return the tensors of all lists."""
    return [tensor for tensors in lists for tensor in tensors]


def _done(tensors: list[Tensor]) -> Any:
    """Return a finished work object whose future holds the tensors, as DDP's communication hooks expect."""
    future: Future[list[Tensor]] = Future()
    future.set_result(tensors)
    return c10d_c._create_work_from_future(future)  # type: ignore[attr-defined]


def _has_data(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta


def _reduce(tensor: Tensor, opts: Any, ranks: int) -> None:
    op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    if not _has_data(tensor) or tensor.dtype == torch.bool:
        return
    if op == dist.ReduceOp.SUM:
        tensor.detach().mul_(ranks)
    elif op == dist.ReduceOp.PRODUCT:
        tensor.detach().pow_(ranks)


def _copy(output: Tensor, tensor: Tensor) -> None:
    if _has_data(output) and _has_data(tensor) and output.numel() == tensor.numel():
        output.detach().copy_(tensor.detach().view(output.shape))


def _zero(tensor: Tensor) -> None:
    if _has_data(tensor):
        tensor.detach().zero_()
