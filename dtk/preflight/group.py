"""The process group of a simulated rank: records every call and wait, and answers as `MirrorGroup` does.

Every communication path uses a process group: Python's functions, functional collectives, DTensor, DDP's reducer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dtk.preflight.issuing import ANY_RANK, IssuingGroup, Share, Sizes, current
from dtk.record.signatures import listed, nbytes
from dtk.simulate.mirror import flat


class RecordingGroup(IssuingGroup):
    """Process group that records each call, then behaves as `MirrorGroup`."""

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """See `MirrorGroup`, as for the following methods."""
        tensors = listed(tensors)
        share = self._share("reduce", tensors, tensors, opts)
        super().allreduce(tensors, opts)
        amount = sum(tensor.numel() for tensor in tensors)
        return self._issue("all_reduce", tensors, share=share, amount=amount, reduce_op=opts.reduceOp)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None) -> Any:  # noqa: D102
        tensors = listed(tensors)
        share = self._share("reduce", tensors, tensors, opts, to=opts.rootRank)
        super().reduce(tensors, opts)
        amount, root = tensors[0].numel(), opts.rootRank
        return self._issue("reduce", tensors, share=share, amount=amount, reduce_op=opts.reduceOp, root=root)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:  # noqa: D102
        tensors = listed(tensors)
        share = self._share("root", tensors, tensors, root=opts.rootRank)
        super().broadcast(tensors, opts)
        return self._issue("broadcast", tensors, share=share, amount=nbytes(tensors), root=opts.rootRank)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        share = self._share("all", inputs, _by_member(outputs))
        super().allgather(outputs, inputs)
        parts, sizes = flat(outputs), _gathered(outputs, inputs)
        return self._issue("all_gather", list(inputs), parts, share=share, sizes=sizes, amount=nbytes(parts))

    allgather_coalesced = allgather

    def all_gather_single(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        outputs, inputs = listed(outputs), listed(inputs)
        share: Share = None
        if current().exchange.live:
            share = self._share("all", inputs, _by_member([self._cut(output) for output in outputs]))
        super().all_gather_single(outputs, inputs)
        amount = nbytes(outputs)
        sizes = ([nbytes(inputs)], [amount // self.size()])
        return self._issue("all_gather_into_tensor", inputs, outputs, share=share, sizes=sizes, amount=amount)

    _allgather_base = all_gather_single_coalesced = allgather_into_tensor_coalesced = all_gather_single

    def _cut(self, tensor: Tensor) -> list[Tensor]:
        flat = tensor.data.view(-1)
        return list(flat.view(self.size(), -1)) if flat.numel() else [flat] * self.size()

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        share = self._share("all", inputs, _by_member(outputs or ()), to=opts.rootRank)
        if outputs:
            super().allgather(outputs, inputs)
        sizes = _gathered(outputs or (), inputs)
        return self._issue("gather", list(inputs), flat(outputs or ()), share=share, sizes=sizes, root=opts.rootRank)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        share = self._share("root_mine", _by_member(inputs or ()), outputs, root=opts.rootRank)
        super().scatter(outputs, inputs)
        expected = [nbytes(outputs)]
        sizes = (_bytes_by_member(inputs) if inputs else expected, expected)
        return self._issue("scatter", flat(inputs or ()), list(outputs), share=share, sizes=sizes, root=opts.rootRank)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        share = self._share("reduce_mine", _by_member(inputs), outputs, opts)
        sizes = (_bytes_by_member(inputs), [nbytes(outputs)])
        super().reduce_scatter(outputs, inputs, opts)
        parts, op = flat(inputs), opts.reduceOp
        amount = sum(part.numel() for part in parts)
        return self._issue("reduce_scatter", parts, outputs, share=share, sizes=sizes, amount=amount, reduce_op=op)

    def reduce_scatter_single(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        outputs, inputs = listed(outputs), listed(inputs)
        share: Share = None
        if current().exchange.live:
            parts = _by_member([self._cut(tensor.contiguous()) for tensor in inputs])
            share = self._share("reduce_mine", parts, outputs, opts)
        super().reduce_scatter_single(outputs, inputs, opts)
        sizes = ([nbytes(inputs) // self.size()], [nbytes(outputs)])
        amount, op = sum(tensor.numel() for tensor in inputs), opts.reduceOp
        name = "reduce_scatter_tensor"
        return self._issue(name, inputs, outputs, share=share, sizes=sizes, amount=amount, reduce_op=op)

    _reduce_scatter_base = reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced = reduce_scatter_single

    def all_to_all_single(  # noqa: D102
        self, output: Tensor, tensor: Tensor, output_splits: Any = None, input_splits: Any = None, opts: Any = None
    ) -> Any:
        given, got = self._split(tensor, input_splits), self._split(output, output_splits)
        share = self._share("mine", given, got)
        super().all_to_all_single(output, tensor)
        splits = [list(input_splits or ()), list(output_splits or ())]
        sizes = ([part.nbytes for part in given], [part.nbytes for part in got])
        return self._issue("all_to_all_single", [tensor], [output], share=share, sizes=sizes, splits=splits)

    alltoall_base = all_to_all_single

    def _split(self, tensor: Tensor, splits: Any) -> list[Tensor]:
        rows = list(splits or ()) or [tensor.size(0) // self.size()] * self.size()
        return list(torch.split(tensor.data[: sum(rows)], rows))

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # noqa: D102
        share = self._share("mine", list(inputs), list(outputs))
        sizes = ([tensor.nbytes for tensor in inputs], [tensor.nbytes for tensor in outputs])
        for output, tensor in zip(outputs, inputs, strict=True):
            super().all_to_all_single(output, tensor)
        splits = [[t.numel() for t in inputs], [t.numel() for t in outputs]]
        return self._issue("all_to_all", list(inputs), list(outputs), share=share, sizes=sizes, splits=splits)

    def barrier(self, opts: Any = None) -> Any:  # noqa: D102
        return self._issue("barrier", ())

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:  # noqa: D102
        self._issue("monitored_barrier", ()).wait()

    def send(self, tensors: Any, destination: int, tag: int) -> Any:  # noqa: D102
        tensors = listed(tensors)
        work = self._issue("send", tensors, sizes=([nbytes(tensors)], ()), root=destination, tag=tag)
        current().send(self.group_name, self._global(destination), tag, tensors)
        return work

    def recv(self, tensors: Any, source: int, tag: int) -> Any:  # noqa: D102
        tensors = listed(tensors)
        super().recv(tensors, source, tag)
        work = self._issue("recv", (), tensors, sizes=((), [nbytes(tensors)]), root=source, tag=tag)
        return work.receives(source, current().receive(self.group_name, self._global(source), tag, tensors))

    def recv_anysource(self, tensors: Any, tag: int) -> Any:  # noqa: D102
        tensors = listed(tensors)
        super().recv(tensors, 0, tag)
        current().exchange.made_up = True  # Which sender comes first is not deterministic.
        work = self._issue("recv", (), tensors, sizes=((), [nbytes(tensors)]), root=ANY_RANK, tag=tag)
        return work.receives((self.rank() + 1) % self.size(), [])


def _by_member(lists: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [part for parts in zip(*lists, strict=False) for part in parts]


def _bytes_by_member(lists: Sequence[Sequence[Tensor]]) -> list[int]:
    return [nbytes(parts) for parts in zip(*lists, strict=False)]


def _gathered(outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> Sizes:
    """Return the bytes of a gather: those sent to every member, and those expected of each."""
    return [nbytes(inputs)], _bytes_by_member(outputs) or [nbytes(inputs)]
