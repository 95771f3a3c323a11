"""What a call of torch.distributed asks for, taken from its arguments: the table of functions that are recorded.

Knows the signatures of torch's functions and which of their arguments all ranks must agree on; keeps no state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

SUM = torch.distributed.ReduceOp.SUM


@dataclass(slots=True, eq=False)
class Call:
    """One call: tensors, and what else the ranks must agree on."""

    group: Any
    asynchronous: bool
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor] = ()
    amount: int = -1
    reduce_op: Any = None
    root: tuple[int | None, int | None] | None = None
    """(Global rank, rank in the group), one of which is given."""
    tag: int = 0
    splits: Any = None


@dataclass(frozen=True, slots=True)
class Kind:
    """One function of torch.distributed."""

    op: str
    """Its name in the record."""
    wire: str
    """What it is for the other ranks: several functions are one and the same collective."""
    extract: Callable[..., Call]
    p2p: bool = False
    typed: bool = False
    """Whether ranks must agree on the dtype, not only on bytes."""


def _all_reduce(tensor: Tensor, op: Any = SUM, group: Any = None, async_op: bool = False) -> Call:
    return Call(group, async_op, (tensor,), amount=tensor.numel(), reduce_op=op)


def _all_reduce_coalesced(tensors: Any, op: Any = SUM, group: Any = None, async_op: bool = False) -> Call:
    listed = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
    return Call(group, async_op, listed, amount=sum(t.numel() for t in listed), reduce_op=op)


def _reduce(
    tensor: Tensor, dst: Any = None, op: Any = SUM, group: Any = None, async_op: bool = False, group_dst: Any = None
) -> Call:
    return Call(group, async_op, (tensor,), amount=tensor.numel(), reduce_op=op, root=(dst, group_dst))


def _broadcast(
    tensor: Tensor, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None
) -> Call:
    return Call(group, async_op, (tensor,), amount=tensor.nbytes, root=(src, group_src))


def _all_gather(tensor_list: Any, tensor: Tensor, group: Any = None, async_op: bool = False) -> Call:
    # Ranks may bring different sizes under NCCL, but every list must have the same sizes.
    return Call(group, async_op, (tensor,), tensor_list, amount=sum(t.nbytes for t in tensor_list))


def _all_gather_single(output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False) -> Call:
    return Call(group, async_op, (input_tensor,), (output_tensor,), amount=output_tensor.nbytes)


def _all_gather_coalesced(
    output_tensor_lists: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Call:
    return Call(group, async_op, tuple(input_tensor_list), amount=sum(t.nbytes for t in input_tensor_list))


def _gather(
    tensor: Tensor,
    gather_list: Any = None,
    dst: Any = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: Any = None,
) -> Call:
    return Call(group, async_op, (tensor,), gather_list or (), root=(dst, group_dst))


def _scatter(
    tensor: Tensor,
    scatter_list: Any = None,
    src: Any = None,
    group: Any = None,
    async_op: bool = False,
    group_src: Any = None,
) -> Call:
    return Call(group, async_op, scatter_list or (), (tensor,), root=(src, group_src))


def _reduce_scatter(output: Tensor, input_list: Any, op: Any = SUM, group: Any = None, async_op: bool = False) -> Call:
    return Call(group, async_op, input_list, (output,), amount=sum(t.numel() for t in input_list), reduce_op=op)


def _reduce_scatter_single(
    output: Tensor, input: Tensor, op: Any = SUM, group: Any = None, async_op: bool = False
) -> Call:
    return Call(group, async_op, (input,), (output,), amount=input.numel(), reduce_op=op)


def _all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Call:
    splits = [list(input_split_sizes or ()), list(output_split_sizes or ())]
    return Call(group, async_op, (input,), (output,), splits=splits)


def _all_to_all(output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False) -> Call:
    splits = [[t.numel() for t in input_tensor_list], [t.numel() for t in output_tensor_list]]
    return Call(group, async_op, input_tensor_list, output_tensor_list, splits=splits)


def _barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None) -> Call:
    return Call(group, async_op, ())


def _monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Call:
    return Call(group, False, ())


def _send(
    asynchronous: bool, tensor: Tensor, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None
) -> Call:
    return Call(group, asynchronous, (tensor,), root=(dst, group_dst), tag=tag)


def _recv(
    asynchronous: bool, tensor: Tensor, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
) -> Call:
    return Call(group, asynchronous, (), (tensor,), root=(src, group_src), tag=tag)


_INTO = Kind("all_gather_into_tensor", "all_gather", _all_gather_single)
_SCATTER_SUM = Kind("reduce_scatter_tensor", "reduce_scatter", _reduce_scatter_single, typed=True)
KINDS: dict[str, Kind] = {
    "all_reduce": Kind("all_reduce", "all_reduce", _all_reduce, typed=True),
    "all_reduce_coalesced": Kind("all_reduce_coalesced", "all_reduce_coalesced", _all_reduce_coalesced, typed=True),
    "reduce": Kind("reduce", "reduce", _reduce, typed=True),
    "broadcast": Kind("broadcast", "broadcast", _broadcast),
    "all_gather": Kind("all_gather", "all_gather", _all_gather),
    "all_gather_single": _INTO,
    "all_gather_into_tensor": _INTO,
    "_all_gather_base": _INTO,
    "all_gather_coalesced": Kind("all_gather_coalesced", "all_gather_coalesced", _all_gather_coalesced),
    "gather": Kind("gather", "gather", _gather),
    "scatter": Kind("scatter", "scatter", _scatter),
    "reduce_scatter": Kind("reduce_scatter", "reduce_scatter", _reduce_scatter, typed=True),
    "reduce_scatter_single": _SCATTER_SUM,
    "reduce_scatter_tensor": _SCATTER_SUM,
    "_reduce_scatter_base": _SCATTER_SUM,
    "all_to_all_single": Kind("all_to_all_single", "all_to_all", _all_to_all_single),
    "all_to_all": Kind("all_to_all", "all_to_all", _all_to_all),
    "barrier": Kind("barrier", "barrier", _barrier),
    "monitored_barrier": Kind("monitored_barrier", "monitored_barrier", _monitored_barrier),
    "send": Kind("send", "send", partial(_send, False), p2p=True),
    "recv": Kind("recv", "recv", partial(_recv, False), p2p=True),
    "isend": Kind("isend", "isend", partial(_send, True), p2p=True),
    "irecv": Kind("irecv", "irecv", partial(_recv, True), p2p=True),
}
"""Name in torch.distributed -> what it does. Names that this torch does not have are passed over."""
OBJECTS = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
)  # fmt: skip
"""Made of several calls above; those are recorded, with this as the user's call."""
