"""The process group of a rehearsal: records every call and every wait, and answers as `MirrorGroup` does.

All ways lead through a process group: Python's functions, functional collectives, DTensor, DDP's reducer in C++.
What needs the other ranks' values (sizes, flags, objects) comes from ranks that were simulated before.
"""

import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.futures import Future

from diagnostics.evidence.calls import USER_CALLS
from dtk.preflight.calls import NEW_GROUP
from dtk.preflight.exchange import Exchange
from dtk.preflight.tape import Tape
from dtk.record import collectives
from dtk.record.collectives import CollectiveLog
from dtk.record.signatures import KINDS, OBJECTS, Call, Kind
from dtk.simulate.mirror import MirrorGroup

_NEW_GROUP = Kind(NEW_GROUP, NEW_GROUP, Call)
_USER_CALLS = {*OBJECTS, "monitored_barrier"}


class Rehearsal:
    """What all groups of this process share while a rank is simulated."""

    def __init__(self, exchange: Exchange, world_size: int, steps: int) -> None:
        self.world_size = world_size
        self.steps = steps
        """How many this rank is to do; 0 = to its own end."""
        self.step = -1
        """The one in progress, counted from 1; -1 before the first."""
        self.rounds = 0
        """Steps so far; see `Record`."""
        self.joined = False
        """Whether it made its default group."""
        self.tape = Tape()
        self.log = CollectiveLog(self.tape)  # type: ignore[arg-type]
        self.exchange = exchange
        self.made: list[tuple[tuple[int, ...], str]] = []
        """Every group that was made after the default one: ranks and description."""


current: Rehearsal | None = None
"""The rank that is simulated in this process."""


class Issued(dist.Work):
    """A call that was issued. It has its values at once; that somebody waits for it goes on the tape."""

    def __init__(self, tape: Tape, number: int, tensors: list[Tensor], source: int = -1) -> None:
        super().__init__()
        self._tape = tape
        self._number = number
        self._tensors = tensors
        self._source = source

    def wait(self, timeout: Any = None) -> bool:
        """The rank stands here until the call is complete."""
        self._tape.wait(self._number)
        return True

    def is_completed(self) -> bool:
        """Whoever asks goes on only when it is."""
        return self.wait()

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def result(self) -> list[Tensor]:
        """The tensors."""
        return self._tensors

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> Any:
        """Complete. Inside backward (DDP's buckets) it is waited for when backward ends, elsewhere here."""
        future: Future[list[Tensor]] = Future()
        future.set_result(self._tensors)
        if torch._C._current_graph_task_id() == -1:
            self.wait()
        else:
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)  # type: ignore[attr-defined]
        return future


class RehearsalGroup(MirrorGroup):
    """Records, then mirrors."""

    def _issue(self, name: str, tensors: list[Tensor], source: int = -1, **call: Any) -> Issued:
        """Record a call of torch.distributed's function `name` and hand out its work."""
        rehearsal = current
        assert rehearsal is not None
        number = rehearsal.tape.issued
        frame = sys._getframe(2)
        rehearsal.tape.stack = stack_of(frame)
        token = rehearsal.log.begin(KINDS[name], Call(self, False, **call), _user_call(frame), frame)
        if token is not None:
            rehearsal.log.end(token, 0, KINDS[name].p2p)
        if source == -1:
            rehearsal.exchange.spoil(self._place(), tensors)
        return Issued(rehearsal.tape, number, tensors, source)

    def _place(self) -> tuple[str, int]:
        """Group and position of the call that was just issued."""
        assert current is not None
        state = current.log.groups[self.group_name]
        return self.group_name, 0 if state is None else state.count

    def _global(self, rank: int) -> int:
        return c10d.get_process_group_ranks(self)[rank]

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """See `MirrorGroup`, as for all that follow."""
        kept = _listed(tensors)
        super().allreduce(kept, opts)
        amount = sum(tensor.numel() for tensor in kept)
        return self._issue("all_reduce", kept, inputs=kept, amount=amount, reduce_op=opts.reduceOp)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None) -> Any:  # noqa: D102
        kept = _listed(tensors)
        super().reduce(kept, opts)
        root = (self._global(opts.rootRank), opts.rootRank)
        amount = kept[0].numel()
        return self._issue("reduce", kept, inputs=kept, amount=amount, reduce_op=opts.reduceOp, root=root)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:  # noqa: D102
        kept = _listed(tensors)
        root = (self._global(opts.rootRank), opts.rootRank)
        if opts.rootRank != self.rank() and _user_call(sys._getframe(1)):
            for tensor in kept:  # Sizes of objects: never written on the ranks that receive them.
                tensor.zero_()
        work = self._issue("broadcast", kept, inputs=kept, amount=sum(t.nbytes for t in kept), root=root)
        assert current is not None
        current.exchange.broadcast((*self._place(), -1), root[0], kept)
        return work

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        super().allgather(outputs, inputs)
        parts = [part for listed in outputs for part in listed]
        amount = sum(part.nbytes for part in parts)
        return self._issue("all_gather", parts, inputs=list(inputs), outputs=parts, amount=amount)

    allgather_coalesced = allgather

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:  # noqa: D102
        super().all_gather_single(output, tensor)
        return self._issue("all_gather_into_tensor", [output], inputs=[tensor], outputs=[output], amount=output.nbytes)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        for output, tensor in zip(outputs, inputs, strict=True):
            super().all_gather_single(output, tensor)
        outputs, amount = list(outputs), sum(output.nbytes for output in outputs)
        return self._issue("all_gather_into_tensor", outputs, inputs=list(inputs), outputs=outputs, amount=amount)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        if outputs:
            super().allgather(outputs, inputs)
        parts = [part for listed in outputs or () for part in listed]
        root = (self._global(opts.rootRank), opts.rootRank)
        return self._issue("gather", parts or list(inputs), inputs=list(inputs), outputs=parts, root=root)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        super().scatter(outputs, inputs)
        parts = [part for listed in inputs or () for part in listed]
        root = (self._global(opts.rootRank), opts.rootRank)
        work = self._issue("scatter", list(outputs), inputs=parts, outputs=list(outputs), root=root)
        assert current is not None
        current.exchange.scatter(self._place(), root[0], parts, list(outputs), self.rank())
        return work

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        super().reduce_scatter(outputs, inputs, opts)
        parts = [part for listed in inputs for part in listed]
        amount = sum(part.numel() for part in parts)
        return self._issue(
            "reduce_scatter", list(outputs), inputs=parts, outputs=list(outputs), amount=amount, reduce_op=opts.reduceOp
        )

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:  # noqa: D102
        super().reduce_scatter_single(output, tensor, opts)
        return self._reduce_scatter([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        for output, tensor in zip(outputs, inputs, strict=True):
            super().reduce_scatter_single(output, tensor, opts)
        return self._reduce_scatter(list(outputs), list(inputs), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Issued:
        amount = sum(tensor.numel() for tensor in inputs)
        return self._issue(
            "reduce_scatter_tensor", outputs, inputs=inputs, outputs=outputs, amount=amount, reduce_op=opts.reduceOp
        )

    def all_to_all_single(  # noqa: D102
        self, output: Tensor, tensor: Tensor, output_splits: Any = None, input_splits: Any = None, opts: Any = None
    ) -> Any:
        super().all_to_all_single(output, tensor)
        splits = [list(input_splits or ()), list(output_splits or ())]
        return self._issue("all_to_all_single", [output], inputs=[tensor], outputs=[output], splits=splits)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        for output, tensor in zip(outputs, inputs, strict=True):
            super().all_to_all_single(output, tensor)
        splits = [[t.numel() for t in inputs], [t.numel() for t in outputs]]
        return self._issue("all_to_all", list(outputs), inputs=list(inputs), outputs=list(outputs), splits=splits)

    def barrier(self, opts: Any = None) -> Any:  # noqa: D102
        return self._issue("barrier", [], inputs=())

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:  # noqa: D102
        self._issue("monitored_barrier", [], inputs=()).wait()

    def send(self, tensors: Any, destination: int, tag: int) -> Any:  # noqa: D102
        kept = _listed(tensors)
        peer = (self._global(destination), destination)
        work = self._issue("send", kept, self._global(self.rank()), inputs=kept, root=peer, tag=tag)
        assert current is not None
        current.exchange.send(self.group_name, peer[0], tag, kept)
        return work

    def recv(self, tensors: Any, source: int, tag: int) -> Any:  # noqa: D102
        super().recv(tensors, source, tag)
        kept = _listed(tensors)
        peer = (self._global(source), source)
        work = self._issue("recv", kept, peer[0], inputs=(), outputs=kept, root=peer, tag=tag)
        assert current is not None
        current.exchange.receive(self.group_name, peer[0], tag, kept)
        return work

    def recv_anysource(self, tensors: Any, tag: int) -> Any:  # noqa: D102
        super().recv(tensors, 0, tag)
        kept = _listed(tensors)
        source = self._global((self.rank() + 1) % self.size())
        return self._issue("recv", kept, source, inputs=(), outputs=kept, root=(None, None), tag=tag)


def made_group(ranks: Sequence[int], desc: str) -> None:
    """Record that a group is made, whether or not this rank belongs to it: a collective of the default group."""
    rehearsal = current
    assert rehearsal is not None
    members = tuple(ranks)
    rehearsal.made.append((members, desc))
    call = Call(c10d._get_default_group(), False, (), amount=_checksum(members), splits=list(members))
    number = rehearsal.tape.issued
    frame = sys._getframe(2)
    rehearsal.tape.stack = stack_of(frame)
    token = rehearsal.log.begin(_NEW_GROUP, call, "", frame)
    if token is not None:
        rehearsal.log.end(token, 0, False)
        rehearsal.tape.wait(number)


def _checksum(ranks: tuple[int, ...]) -> int:
    """One number for a list of ranks: as good as the list for telling two apart."""
    total = len(ranks)
    for rank in ranks:
        total = (total * 1_000_003 + rank + 1) % 2_147_483_647
    return total


def stack_of(frame: FrameType | None) -> str:
    """The user's frames, innermost first, and those of torch that say which call it is and whether in backward."""
    found = []
    while frame is not None and frame.f_code is not outermost:
        code = frame.f_code
        known = _plumbing.get(code)
        if known is None:
            file, name = code.co_filename, code.co_name
            told = file.startswith(_TORCH) and (name == "backward" or name in USER_CALLS)
            known = _plumbing[code] = not told and file.startswith((*collectives.PLUMBING, "<"))
        if not known:
            found.append(f"{code.co_filename}:{frame.f_lineno}\t{code.co_qualname}")
        frame = frame.f_back
    return "\n".join(found)


def _user_call(frame: FrameType | None) -> str:
    """The object collective, if any, that this call is a part of."""
    found = ""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        if frame.f_code.co_name in _USER_CALLS and frame.f_code.co_filename == c10d.__file__:
            found = frame.f_code.co_name
        frame = frame.f_back
    return found


outermost: CodeType | None = None
"""What called the rank's own code."""
_plumbing: dict[CodeType, bool] = {}
_TORCH = torch.__path__[0]


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)
