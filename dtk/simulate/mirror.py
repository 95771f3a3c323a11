"""A process group without the other ranks: every collective completes immediately, as if all ranks contributed the same
as this one. Implements the interface of `torch.distributed.ProcessGroup` independently of its callers.

Values are therefore harmless placeholders: sums are world_size times this rank's, and values that only another rank has
are zero. Tensors without data are not changed.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d_c
from torch.distributed import distributed_c10d as c10d
from torch.distributed.tensor import debug
from torch.futures import Future

from diagnostics.contract.mesh import Mesh
from dtk.errors import Errors
from dtk.models import moe
from dtk.parallel.context import Context, leave
from dtk.record.signatures import KINDS, listed

_Group: Any = dist.ProcessGroup  # Untyped: torch declares several signatures per collective and uses one of them.


_errors = Errors(__file__)
_BETWEEN = ("torch.", "dtk.record.", "dtk.preflight.")  # Modules whose frames are between the caller and this group.
Heard = Callable[[str, "MirrorGroup", list[Tensor]], None]
"""Operation, group, and full buffers: outputs of an all_gather, inputs of a reduce_scatter."""


ANY_RANK = -1  # Sender of a receive from any rank.
How = Literal["reduce", "reduce_mine", "root", "root_mine", "all", "mine"]
"""How the members' inputs give a result: reduced over the members, the root's input, or all inputs. `mine`: only the
part of it for the asking member."""


class GroupCall(NamedTuple):
    """One call on a group, as its members issue it."""

    name: str
    """The function of torch.distributed."""
    how: How | None
    """None for a call without a result, and for a send or receive."""
    inputs: Sequence[Any] = ()
    """Tensors, or for each of them a list of its parts by member."""
    outputs: Sequence[Any] = ()
    """Likewise; the inputs themselves if the call works in place."""
    opts: Any = None
    """torch's options: `reduceOp`, `rootRank`."""
    splits: Any = None
    """Rows of the input, and of the output, for each member."""
    peer: int | None = None
    """Rank in the group of the other end of a send or receive; ANY_RANK for a receive from any."""
    tag: int = 0

    @property
    def root(self) -> int | None:
        """Rank in the group of the only giver or taker; None if all give and take."""
        return getattr(self.opts, "rootRank", None)


class _Options:
    """Options that hold a group's name; gloo's have the same fields."""

    group_name = ""
    global_ranks_in_group: Sequence[int] = ()


class _Received(dist.Work):
    """A finished receive that knows its source rank."""

    def __init__(self, source: int) -> None:
        super().__init__()
        self.source = source

    def wait(self, timeout: Any = None) -> bool:
        """Return immediately."""
        return True

    def _source_rank(self) -> int:
        return self.source


class MirrorGroup(_Group):  # type: ignore[misc]
    """One rank of `size`, alone in this process. It has the constructor of gloo's group; other options are ignored."""

    heard: ClassVar[Heard | None] = None
    """Called for every call with tensors."""
    group_name: Any = ""
    """Name, unique in this process."""
    group_desc = ""
    """Purpose of the group."""
    supports_splitting = False
    supports_coalescing = False

    def __init__(self, store: Any, rank: int, size: int, timeout: Any = None, **options: Any) -> None:
        super().__init__(rank, size)
        self.store = store
        self.options = _Options()

    def _set_group_name(self, name: Any) -> None:
        self.group_name = name

    def _set_group_desc(self, desc: str) -> None:
        self.group_desc = desc

    def _call(self, call: GroupCall, answer: Callable[[], object]) -> Any:
        """Set the outputs by `answer`, report the call with its full buffers, and return its finished work."""
        answer()
        op, results = KINDS[call.name].wire, flat(call.outputs)
        full = call.inputs if op in ("reduce_scatter", "all_to_all") or not results else results
        if full and (heard := type(self).heard) is not None:
            heard(op, self, flat(full))
        return _done(results)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce as if all ranks held equal values: sums are multiplied by world_size, averages and extremes kept."""
        tensors = listed(tensors)
        call = GroupCall("all_reduce", "reduce", tensors, tensors, opts)
        return self._call(call, lambda: self._reduce(tensors, opts))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """Set the reduced values on the root; other ranks keep theirs."""
        tensors = listed(tensors)
        reduced = tensors if opts.rootRank == self.rank() else ()
        return self._call(GroupCall("reduce", "reduce", tensors, tensors, opts), lambda: self._reduce(reduced, opts))

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Keep this rank's values as the root's; zero the tensors of objects that another rank would send."""
        tensors, objects = listed(tensors), False
        frame: Any = sys._getframe(1) if opts.rootRank != self.rank() else None
        while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
            # Sizes are always non-zero on ranks that receive them.
            objects = objects or frame.f_code.co_name == "broadcast_object_list"
            frame = frame.f_back
        call = GroupCall("broadcast", "root", tensors, tensors, opts)
        return self._call(call, lambda: _zero(tensors if objects else ()))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Fill every part with a copy of this rank's."""
        return self._call(GroupCall("all_gather", "all", inputs, outputs), lambda: _copies(outputs, inputs))

    allgather_coalesced = allgather

    def all_gather_single(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Fill each output, one or several, with world_size copies of its input."""
        outputs, inputs = listed(outputs), listed(inputs)

        def answer() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                if _has_data(output) and output.numel():  # The input may be a slice of it.
                    output.detach().view(self.size(), -1).copy_(tensor.detach().clone().view(1, -1))

        return self._call(GroupCall("all_gather_into_tensor", "all", inputs, outputs), answer)

    _allgather_base = all_gather_single_coalesced = allgather_into_tensor_coalesced = all_gather_single

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give the root copies of this rank's values."""
        call = GroupCall("gather", "all", inputs, outputs or (), opts)
        return self._call(call, lambda: _copies(outputs, inputs) if outputs else None)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give the root its own part, and the other ranks zeros."""

        def answer() -> None:
            for i, output in enumerate(outputs):
                _copy(output, inputs[i][self.rank()]) if inputs else _zero([output])

        return self._call(GroupCall("scatter", "root_mine", inputs or (), outputs, opts), answer)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce this rank's part of the input, as if all ranks held the same."""

        def answer() -> None:
            for output, parts in zip(outputs, inputs, strict=True):
                _copy(output, parts[self.rank()])
            self._reduce(outputs, opts)

        return self._call(GroupCall("reduce_scatter", "reduce_mine", inputs, outputs, opts), answer)

    def reduce_scatter_single(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce-scatter one or several tensors in equal parts."""
        outputs, inputs = listed(outputs), listed(inputs)

        def answer() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                if _has_data(output) and output.numel():
                    _copy(output, tensor.detach().reshape(self.size(), -1)[self.rank()])
            self._reduce(outputs, opts)

        return self._call(GroupCall("reduce_scatter_tensor", "reduce_mine", inputs, outputs, opts), answer)

    _reduce_scatter_base = reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced = reduce_scatter_single

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: Any = None, input_splits: Any = None, opts: Any = None
    ) -> Any:
        """Receive from every rank what this rank sends to itself, if sizes allow."""
        splits = [list(input_splits or ()), list(output_splits or ())]
        call = GroupCall("all_to_all_single", "mine", [tensor], [output], splits=splits)
        return self._call(call, lambda: _keep_own([output], [tensor]))

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Exchange part by part as `all_to_all_single` does."""
        splits = [[tensor.numel() for tensor in side] for side in (inputs, outputs)]
        call = GroupCall("all_to_all", "mine", [inputs], [outputs], splits=splits)
        return self._call(call, lambda: _keep_own(outputs, inputs))

    def send(self, tensors: Any, destination: int, tag: int) -> Any:
        """Complete immediately."""
        return self._call(GroupCall("send", None, listed(tensors), peer=destination, tag=tag), lambda: None)

    def recv(self, tensors: Any, source: int, tag: int) -> Any:
        """Return zeros."""
        tensors = listed(tensors)
        return self._call(GroupCall("recv", None, (), tensors, peer=source, tag=tag), lambda: _zero(tensors))

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        """Return zeros, from the next rank."""
        self.recv(tensors, ANY_RANK, tag)
        return _Received((self.rank() + 1) % self.size())

    def barrier(self, opts: Any = None) -> Any:
        """Return immediately, as there are no other ranks."""
        return self._call(GroupCall("barrier", None), lambda: None)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Return immediately, as there are no other ranks."""
        self._call(GroupCall("monitored_barrier", None), lambda: None).wait()

    def _reduce(self, tensors: Sequence[Tensor], opts: Any) -> None:
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        for tensor in tensors:
            if not _has_data(tensor) or tensor.dtype == torch.bool:
                continue
            if op == dist.ReduceOp.SUM:
                tensor.detach().mul_(self.size())
            elif op == dist.ReduceOp.PRODUCT:
                tensor.detach().pow_(self.size())

    def _nothing(self, *_: Any) -> None:
        """Do nothing: no connections are open."""

    _start_coalescing = _set_sequence_number_for_group = _set_default_timeout = shutdown = abort = _nothing

    def _end_coalescing(self, *_: Any) -> Any:
        return _done([])

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def getBackendName(self) -> str:  # noqa: N802  torch asks for it.
        """Return a name other than gloo, as torch would look for gloo's devices."""
        return "simulated"

    def get_group_store(self) -> Any:
        """Return the store that was passed to the group's constructor."""
        return self.store


def flat(side: Sequence[Any]) -> list[Tensor]:
    """Return the tensors of one side of a call, and those of its lists."""
    return [tensor for each in side for tensor in listed(each)]


def _done(tensors: Sequence[Tensor]) -> Any:
    """Return a finished work object whose future holds the tensors, as DDP's communication hooks expect."""
    future: Future[list[Tensor]] = Future()
    future.set_result(list(tensors))
    return c10d_c._create_work_from_future(future)  # type: ignore[attr-defined]


def _has_data(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta


def _copy(output: Tensor, tensor: Tensor) -> None:
    if _has_data(output) and _has_data(tensor) and output.numel() == tensor.numel():
        output.detach().copy_(tensor.detach().view(output.shape))


def _copies(outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
    for parts, tensor in zip(outputs, inputs, strict=True):
        for part in parts:
            _copy(part, tensor)


def _keep_own(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    for output, tensor in zip(outputs, inputs, strict=True):
        _copy(output, tensor) if output.shape == tensor.shape else _zero([output])


def _zero(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if _has_data(tensor):
            tensor.detach().zero_()


_NEEDED = ("ProcessGroupGloo", "_tensor_to_object", "_get_default_group")


@contextmanager
def simulated_group(
    rank: int, world_size: int, local_size: int = 8, heard: Heard | None = None, mesh: Mesh | None = None
) -> Iterator[Context]:
    """Join a process group of `world_size` as `rank`; every collective completes immediately (see `MirrorGroup`).

    Groups that are created inside are simulated too, and all are removed at exit. Only one is possible per process.
    `local_size` ranks per node determine local_rank and node_rank. `heard` is called with operation, group and buffers
    of every call with tensors, including DDP's in C++. Without a mesh all ranks are replicas. DtkError if the rank is
    invalid, a process group exists already, or this torch has no gloo to replace.
    """
    rules = {"no_rank": not 0 <= rank < world_size or local_size < 1, "group": dist.is_initialized()}
    _errors.refuse(rules, rank=rank, ranks=world_size, local_size=local_size)
    group = type("ListeningGroup", (MirrorGroup,), {"heard": staticmethod(heard) if heard else None})
    read_counts, moe.read_counts = moe.read_counts, moe.even_counts  # The sizes depend on values.
    hook = sys.excepthook  # torch replaces it by one that prints a rank before every line.
    with stand_in(group):
        try:
            store = torch._C._distributed_c10d.HashStore()
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
            yield Context(
                rank=rank,
                local_rank=rank % local_size,
                world_size=world_size,
                node_rank=rank // local_size,
                device=torch.device("cpu"),
                backend="gloo",
                control=dist.new_group(backend="gloo", group_desc="control"),
                mesh=mesh or Mesh(dp_replicate=world_size),
            )
        finally:
            moe.read_counts, sys.excepthook = read_counts, hook
            leave()
            # DTensor's cache of operations has names of this rank's groups.
            caches: Any = debug
            caches._clear_python_sharding_prop_cache()
            caches._clear_fast_path_sharding_prop_cache()


@contextmanager
def stand_in(group: type[MirrorGroup]) -> Iterator[None]:
    """Replace gloo groups by this class while open; objects not received are None. DtkError if torch has no gloo."""
    missing = [name for name in _NEEDED if not hasattr(c10d, name)]
    if missing or not hasattr(torch._C._distributed_c10d, "_create_work_from_future"):
        raise _errors("torch", version=torch.__version__, missing=", ".join(missing) or "_create_work_from_future")
    module: Any = c10d
    gloo, to_object = module.ProcessGroupGloo, module._tensor_to_object

    def received(tensor: Any, *rest: Any) -> Any:
        return to_object(tensor, *rest) if tensor.numel() else None

    module.ProcessGroupGloo, module._tensor_to_object = group, received
    try:
        yield
    finally:
        module.ProcessGroupGloo, module._tensor_to_object = gloo, to_object
