"""Records functional collectives (DTensor, tensor parallelism, compiled graphs) through kernels for torch's operators.
Tracing never reaches them; calls that bypass the dispatcher (`cpp_wrapper`, CUDA graph replay) are not recorded.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from diagnostics.evidence.ring.format import ISSUED, RAISED
from dtk.record.collectives import CollectiveLog, Token
from dtk.record.guard import report
from dtk.record.signatures import KINDS, Call, Kind, listed

_DEVICES = ("CPU", "CUDA")
_TORCHS_OWN = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
"""Dispatches past our kernel to torch's composite one, which is the same for every key."""

_log: CollectiveLog | None = None
_libraries: list[torch.library.Library] = []


def _all_reduce(tensors: Tensor | Sequence[Tensor], op: str, group: Any) -> Call:
    inputs = listed(tensors)
    return Call(group, True, inputs, amount=sum(t.numel() for t in inputs), reduce_op=op.upper())


def _all_gather(tensors: Tensor | Sequence[Tensor], size: int, group: Any, **out: Tensor) -> Call:
    inputs = listed(tensors)
    return Call(group, True, inputs, amount=sum(t.nbytes for t in inputs) * size)


def _reduce_scatter(tensors: Tensor | Sequence[Tensor], op: str, size: int, group: Any, **out: Tensor) -> Call:
    return _all_reduce(tensors, op, group)


def _as(name: str, extract: Callable[..., Call]) -> Kind:
    return replace(KINDS[name], extract=extract)


_GATHERS = Kind("all_gather_into_tensor_coalesced", "all_gather_into_tensor_coalesced", _all_gather)
_SCATTERS = Kind("reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced", _reduce_scatter, typed=True)
_ALL_TO_ALL = _as(
    "all_to_all_single",
    lambda tensor, outputs, inputs, group: Call(group, True, (tensor,), splits=[list(outputs), list(inputs)]),
)
_BROADCAST = _as("broadcast", lambda t, source, group: Call(group, True, (t,), amount=t.nbytes, root=(None, source)))
_SEND = _as("isend", lambda tensor, peer, tag, group: Call(group, True, (tensor,), root=(peer, None), tag=tag))
_RECV = _as("irecv", lambda tensor, peer, tag, group: Call(group, True, (), (tensor,), root=(peer, None), tag=tag))
_SHARD = _as("all_to_all_single", lambda tensor, gather_dim, shard_dim, group: Call(group, False, (tensor,)))
_NAMES = {
    "all_reduce all_reduce_": _as("all_reduce", _all_reduce),
    "all_reduce_coalesced all_reduce_coalesced_": _as("all_reduce_coalesced", _all_reduce),
    "broadcast broadcast_": _BROADCAST,
    "all_gather_into_tensor all_gather_into_tensor_out": _as("all_gather_into_tensor", _all_gather),
    "reduce_scatter_tensor reduce_scatter_tensor_out": _as("reduce_scatter_tensor", _reduce_scatter),
    **{kind.op: kind for kind in (_GATHERS, _SCATTERS)},
    **{"all_to_all_single": _ALL_TO_ALL, "isend": _SEND, "irecv": _RECV},
}
OPERATORS: dict[str, Kind] = {
    **{f"_c10d_functional::{name}": kind for names, kind in _NAMES.items() for name in names.split()},
    "_dtensor::shard_dim_alltoall": _SHARD,
}
"""Operator -> kind of its call. Operators that this version of torch lacks are skipped."""


def install(log: CollectiveLog) -> None:
    """Record into `log` from now on. An operator that already has a foreign kernel for a device is skipped there."""
    global _log
    _log = log
    if _libraries:
        return
    spaces = {name.split("::")[0] for name in OPERATORS}
    libraries = {space: torch.library.Library(space, "IMPL") for space in spaces}  # type: ignore[no-untyped-call]
    _libraries.extend(libraries.values())

    def put(name: str, devices: Sequence[str], make: Callable[[Any], Callable[..., Any]]) -> None:
        space, short = name.split("::")
        key = "CompositeExplicitAutograd"
        if torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            own = getattr(getattr(torch.ops, space), short).default.redispatch
            for device in devices:
                if not torch._C._dispatch_has_kernel_for_dispatch_key(name, device):
                    libraries[space].impl(short, make(own), device)  # type: ignore[no-untyped-call]

    for name, kind in OPERATORS.items():
        put(name, _DEVICES, partial(_recorded, lambda *args, kind=kind, **kwargs: ((kind, args, kwargs),)))
    put("_c10d_functional::batch_p2p_ops", _DEVICES, partial(_recorded, _batch))
    # On CUDA it only makes one stream wait for another: the host is not blocked.
    put("_c10d_functional::wait_tensor", ("CPU",), _awaited)


def remove() -> None:
    """Remove the kernels."""
    global _log
    _log = None
    while _libraries:
        _libraries.pop()._destroy()  # type: ignore[no-untyped-call]


Calls = Iterable[tuple[Kind, tuple[Any, ...], dict[str, Any]]]


def _recorded(calls: Callable[..., Calls], own: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        log, frame = _log, sys._getframe(1)
        if log is None:
            return own(_TORCHS_OWN, *args, **kwargs)
        begun = [(kind, _begin(log, kind, frame, *given, **named)) for kind, given, named in calls(*args, **kwargs)]
        outputs = None
        try:
            outputs = own(_TORCHS_OWN, *args, **kwargs)
        finally:
            for kind, token in begun:
                if token is not None:
                    log.end(token, RAISED if outputs is None else ISSUED, kind.p2p)
                    if outputs is not None:
                        log.expect(token, listed(outputs))
        return outputs

    return recorded


def _batch(names: list[str], peers: list[int], tags: list[int], tensors: list[Tensor], group: Any) -> Calls:
    for name, peer, tag, tensor in zip(names, peers, tags, tensors, strict=True):
        yield OPERATORS[f"_c10d_functional::{name}"], (tensor, peer, tag, group), {}


def _awaited(own: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the wait for a functional collective, in which a rank that hangs in the collective is blocked."""

    def awaited(tensor: Tensor) -> Any:
        log = _log
        if log is None:
            return own(_TORCHS_OWN, tensor)
        return log.awaited(log.expected(tensor), own, _TORCHS_OWN, tensor)

    return awaited


def _begin(log: CollectiveLog, kind: Kind, frame: FrameType, *args: Any, **kwargs: Any) -> Token | None:
    """Record the start of a call and return its token, or None if it was not recorded."""
    try:
        return log.begin(kind, kind.extract(*args, **kwargs), "", frame)
    except Exception as problem:
        log.lose()
        report("collectives: a functional one could not be recorded", problem)
        return None
