"""Puts together, in the parent, what simulated ranks bring to a call: the true result of a collective or a send."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, repeat

import torch
from torch import Tensor

from dtk.preflight.exchange import Key, Offer, Values, from_bytes, part, part_of, to_bytes

_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{"SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum},
    **{"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor},
}


@dataclass(slots=True)
class _Call:
    """One call of all its members."""

    offers: dict[int, Offer] = field(default_factory=dict)
    broken: bool = False
    """Two members issued different calls: nothing comes of it."""
    reduced: Values | None = None
    taken: int = 0


class Results:
    """The offers that are not taken yet."""

    def __init__(self) -> None:
        self._calls: dict[Key, _Call] = {}

    def put(self, offer: Offer) -> None:
        """Keep what a rank brings."""
        call = self._calls.setdefault(offer.key, _Call())
        call.broken |= any(other.agreed != offer.agreed for other in call.offers.values())
        call.offers[offer.rank] = offer

    def complete(self, key: Key, needed: tuple[int, ...]) -> bool:
        """Whether these ranks have brought their shares of one and the same call."""
        call = self._calls.get(key)
        return call is not None and not call.broken and all(rank in call.offers for rank in needed)

    def take(self, key: Key, rank: int) -> Values | None:
        """Return the result of a complete call for this rank, or None if a member brought no values.

        Args:
            key: of the call.
            rank: global, of the one who asks.
        """
        call = self._calls[key]
        call.taken += 1
        offer = next(iter(call.offers.values()))
        if call.taken >= offer.takers:
            del self._calls[key]
        if offer.root >= 0:
            return part_of(call.offers[offer.root], rank)
        shares = [parts for giver in offer.members if (parts := call.offers[giver].parts) is not None]
        place, count = offer.members.index(rank), len(offer.members)
        if len(shares) < count:
            return None
        if offer.how == "all":
            return tuple(chain.from_iterable(shares))
        if offer.how == "mine":
            return tuple(value for share in shares for value in part(share, place, count))
        if call.reduced is None:
            brought = [[share[i] for share in shares if i < len(share)] for i in range(len(offer.dtypes))]
            call.reduced = tuple(map(_reduced, brought, offer.dtypes, repeat(offer.reduce_op)))
        return call.reduced if offer.how == "reduce" else part(call.reduced, place, count)


def _reduced(values: list[bytes], dtype_name: str, op: str) -> bytes:
    """One part; nothing for lengths that differ, and for an operation that is not known here or not for this dtype."""
    if op not in _REDUCE or not values[0] or len({len(value) for value in values}) > 1:
        return b""
    try:
        dtype: torch.dtype = getattr(torch, dtype_name)
        whole = reduce(_REDUCE[op], [from_bytes(value, dtype) for value in values])
    except (RuntimeError, TypeError):
        return b""
    return to_bytes((whole / len(values)).to(dtype) if op == "AVG" else whole)
