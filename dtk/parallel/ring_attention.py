"""Ring attention (Liu et al. 2023): causal attention that exchanges keys and values in a ring of ranks.

With c ranks, rank r has the parts r and 2 c - 1 - r of a sequence that is split into 2 c parts ("zigzag"). Each hop is
then the same work for all ranks: attention to the rank's own keys is causal; all queries attend to the first half of an
earlier rank's keys; the second half of the queries attends to all keys of a later rank. The hops are merged by their
log-sum-exp (Milakov & Gimelshein 2018), and backward uses the merged one, so both are exact.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from dtk.parallel.collectives import Arriving, Axis, shift

_aten = torch.ops.aten
_ALIGNED = 32  # The memory-efficient kernel pads its log-sum-exp to a multiple of this many queries.


def ring_attention(q: Tensor, k: Tensor, v: Tensor, axis: Axis) -> Tensor:
    """Return causal attention [batch, heads, part, head width] of this rank's queries over the whole sequence.

    `q` has this rank's two parts of the sequence, concatenated, as have `k` and `v`, whose number of heads divides q's.
    """
    return cast(Tensor, _Ring.apply(q, torch.stack((k, v)), axis))  # type: ignore[no-untyped-call]


class _Ring(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        arriving = shift(kv, axis)
        out, lse = _attend(q, *kv, causal=True)
        out, lse = out.float(), lse.float()
        for seeing, seen, passing in _passing(arriving, axis, q.shape[2]):
            more, more_lse = _attend(q[:, :, seeing], *passing[..., seen, :], causal=False)
            before, total = lse[:, :, seeing], torch.logaddexp(lse[:, :, seeing], more_lse)
            weights = (before - total).exp().unsqueeze(-1), (more_lse - total).exp().unsqueeze(-1)
            out[:, :, seeing] = out[:, :, seeing] * weights[0] + more * weights[1]
            lse[:, :, seeing] = total
        out = out.to(q.dtype)
        ctx.save_for_backward(q, kv, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        axis: Axis = ctx.axis
        q, kv, out, lse = ctx.saved_tensors
        arriving = shift(kv, axis)
        dq, dkv = _attend_backward(gradient, q, kv, out, lse, causal=True)
        # The gradient of keys and values follows them, and returns home one hop later.
        returning = shift(dkv, axis)
        for seeing, seen, kv in _passing(arriving, axis, q.shape[2]):
            part = gradient[:, :, seeing], q[:, :, seeing], kv[..., seen, :], out[:, :, seeing], lse[:, :, seeing]
            more, more_kv = _attend_backward(*part, causal=False)
            dq[:, :, seeing] += more
            dkv = returning.wait()
            dkv[..., seen, :] += more_kv
            returning = shift(dkv, axis)
        return dq.to(q.dtype), returning.wait().to(kv.dtype), None


def _passing(arriving: Arriving, axis: Axis, length: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield for each hop which of the rank's queries attend to which received keys, and the keys and values."""
    for hop in range(1, axis.size):
        kv = arriving.wait()
        if hop < axis.size - 1:
            arriving = shift(kv, axis)
        both = slice(None), slice(length // 2)
        yield *(both if hop <= axis.rank else (slice(length // 2, None), slice(None))), kv


def _attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Return attention and its log-sum-exp [batch, heads, queries] over these keys only."""
    k, v = _for_each_head(k, q), _for_each_head(v, q)
    if q.device.type == "cpu":
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    elif not _suits_flash(q):
        out, lse = _aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)[:2]
    else:
        out, lse = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]
    return out, lse[:, :, : q.shape[2]]


def _attend_backward(
    gradient: Tensor, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the float32 gradients of queries, and of keys and values [2, ...], from these keys only."""
    k, v = (_for_each_head(each, q) for each in kv)
    given = gradient.contiguous(), q, k, v
    if q.device.type == "cpu":
        gradients = _aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, out, lse, 0.0, causal)
    elif not _suits_flash(q):
        lse = torch.nn.functional.pad(lse, (0, -lse.shape[2] % _ALIGNED))
        unused = torch.empty((), dtype=torch.int64, device=q.device)
        gradients = _aten._scaled_dot_product_efficient_attention_backward(
            *given, None, out, lse, unused, unused, 0.0, [True, True, True, False], causal
        )[:3]
    else:
        lengths = q.shape[2], k.shape[2]
        state = torch.empty(2, dtype=torch.uint64, device=q.device)
        gradients = _aten._scaled_dot_product_flash_attention_backward(
            *given, out, lse.contiguous(), None, None, *lengths, 0.0, causal, state, state[:0]
        )
    dq, dk, dv = (gradient.float() for gradient in gradients)
    dkv = torch.stack((dk, dv))
    shared = q.shape[1] // kv.shape[2]
    return dq, dkv.view(2, -1, kv.shape[2], shared, *dkv.shape[3:]).sum(3) if shared > 1 else dkv


def _suits_flash(q: Tensor) -> bool:
    """Whether CUDA's flash kernel supports it: 16 bits, and a head width that fills its vectors."""
    return q.dtype != torch.float32 and q.shape[3] % 8 == 0


def _for_each_head(x: Tensor, q: Tensor) -> Tensor:
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)
