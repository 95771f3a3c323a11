"""The signature of a call of torch.distributed, on which all ranks must agree: the table of recorded functions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SUM = torch.distributed.ReduceOp.SUM


@dataclass(slots=True, eq=False)
class Call:
    """One call: its tensors, and everything else that the ranks must agree on."""

    group: Any
    asynchronous: bool
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor] = ()
    amount: int = -1
    reduce_op: Any = None
    root: tuple[int | None, int | None] | None = None
    """(global rank, rank in the group); one of the two is given."""
    tag: int = 0
    splits: Any = None

    def on_host(self) -> bool:
        """Whether it communicates tensors in host memory."""
        return any(tensor.is_cpu for tensor in (self.inputs or self.outputs)[:1])


@dataclass(frozen=True, slots=True)
class Kind:
    """One function of torch.distributed."""

    op: str
    """Name in the record."""
    wire: str
    """Name on the wire: several functions are the same collective."""
    extract: Callable[..., Call]
    p2p: bool = False
    typed: bool = False
    """Whether ranks must agree on the dtype, not only on the bytes."""


def _elements(tensors: Any) -> int:
    return sum(tensor.numel() for tensor in tensors)


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of several tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def listed(tensors: Any) -> tuple[Tensor, ...]:
    """Return one or several tensors as a tuple."""
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def _send(asynchronous: bool) -> Callable[..., Call]:
    return lambda tensor, dst=None, group=None, tag=0, group_dst=None: Call(
        group, asynchronous, (tensor,), root=(dst, group_dst), tag=tag
    )


def _recv(asynchronous: bool) -> Callable[..., Call]:
    return lambda tensor, src=None, group=None, tag=0, group_src=None: Call(
        group, asynchronous, (), (tensor,), root=(src, group_src), tag=tag
    )


# Each accepts the arguments of torch's function, with the same names and order. Under NCCL the ranks of an all_gather
# may have different sizes, but every list must have the same sizes.
# fmt: off
_INTO = Kind("all_gather_into_tensor", "all_gather",
    lambda output_tensor, input_tensor, group=None, async_op=False: Call(
        group, async_op, (input_tensor,), (output_tensor,), amount=output_tensor.nbytes))
_SCATTER_SUM = Kind("reduce_scatter_tensor", "reduce_scatter",
    lambda output, input, op=SUM, group=None, async_op=False: Call(
        group, async_op, (input,), (output,), amount=input.numel(), reduce_op=op), typed=True)
KINDS: dict[str, Kind] = {
    "all_reduce": Kind("all_reduce", "all_reduce",
        lambda tensor, op=SUM, group=None, async_op=False: Call(
            group, async_op, (tensor,), amount=tensor.numel(), reduce_op=op), typed=True),
    "all_reduce_coalesced": Kind("all_reduce_coalesced", "all_reduce_coalesced",
        lambda tensors, op=SUM, group=None, async_op=False: Call(
            group, async_op, listed(tensors), amount=_elements(listed(tensors)), reduce_op=op), typed=True),
    "reduce": Kind("reduce", "reduce",
        lambda tensor, dst=None, op=SUM, group=None, async_op=False, group_dst=None: Call(
            group, async_op, (tensor,), amount=tensor.numel(), reduce_op=op, root=(dst, group_dst)), typed=True),
    "broadcast": Kind("broadcast", "broadcast",
        lambda tensor, src=None, group=None, async_op=False, group_src=None: Call(
            group, async_op, (tensor,), amount=tensor.nbytes, root=(src, group_src))),
    "all_gather": Kind("all_gather", "all_gather",
        lambda tensor_list, tensor, group=None, async_op=False: Call(
            group, async_op, (tensor,), tensor_list, amount=nbytes(tensor_list))),
    "all_gather_single": _INTO,
    "all_gather_into_tensor": _INTO,
    "_all_gather_base": _INTO,
    "all_gather_coalesced": Kind("all_gather_coalesced", "all_gather_coalesced",
        lambda output_tensor_lists, input_tensor_list, group=None, async_op=False: Call(
            group, async_op, tuple(input_tensor_list), amount=nbytes(input_tensor_list))),
    "gather": Kind("gather", "gather",
        lambda tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None: Call(
            group, async_op, (tensor,), gather_list or (), root=(dst, group_dst))),
    "scatter": Kind("scatter", "scatter",
        lambda tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None: Call(
            group, async_op, scatter_list or (), (tensor,), root=(src, group_src))),
    "reduce_scatter": Kind("reduce_scatter", "reduce_scatter",
        lambda output, input_list, op=SUM, group=None, async_op=False: Call(
            group, async_op, input_list, (output,), amount=_elements(input_list), reduce_op=op), typed=True),
    "reduce_scatter_single": _SCATTER_SUM,
    "reduce_scatter_tensor": _SCATTER_SUM,
    "_reduce_scatter_base": _SCATTER_SUM,
    "all_to_all_single": Kind("all_to_all_single", "all_to_all",
        lambda output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False: Call(
            group, async_op, (input,), (output,),
            splits=[list(input_split_sizes or ()), list(output_split_sizes or ())])),
    "all_to_all": Kind("all_to_all", "all_to_all",
        lambda output_tensor_list, input_tensor_list, group=None, async_op=False: Call(
            group, async_op, input_tensor_list, output_tensor_list,
            splits=[[t.numel() for t in side] for side in (input_tensor_list, output_tensor_list)])),
    "barrier": Kind("barrier", "barrier",
        lambda group=None, async_op=False, device_ids=None, timeout=None: Call(group, async_op, ())),
    "monitored_barrier": Kind("monitored_barrier", "monitored_barrier",
        lambda group=None, timeout=None, wait_all_ranks=False: Call(group, False, ())),
    "send": Kind("send", "send", _send(False), p2p=True),
    "recv": Kind("recv", "recv", _recv(False), p2p=True),
    "isend": Kind("isend", "isend", _send(True), p2p=True),
    "irecv": Kind("irecv", "irecv", _recv(True), p2p=True),
}
# fmt: on
"""Function in torch.distributed -> its kind. Functions that this version of torch lacks are skipped."""
OBJECTS = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
)  # fmt: skip
"""Functions that consist of several calls above, which are recorded with this name as the user's call."""
