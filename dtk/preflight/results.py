"""Puts together what simulated ranks bring to a call: the true result of a collective, and of a send.

Lives in the parent of all ranks. Knows bytes and dtypes; who waits for what is for `dtk.preflight.together` to say.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from dtk.preflight.link import Key, Offer, from_bytes, to_bytes

_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


@dataclass(slots=True)
class _Call:
    """One call of all its members."""

    offers: dict[int, Offer] = field(default_factory=dict)
    broken: bool = False
    """Two members issued different calls: nothing comes of it."""
    reduced: tuple[bytes, ...] | None = None
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

    def take(self, key: Key, rank: int) -> tuple[bytes, ...] | None:
        """What comes of a complete call for this rank; None where a member brought no values.

        Args:
            key: of the call.
            rank: global, of the one who asks.
        """
        call = self._calls[key]
        offer = next(iter(call.offers.values()))
        answer = _answer(call, offer, rank)
        call.taken += 1
        if call.taken >= offer.takers:
            del self._calls[key]
        return answer


def _answer(call: _Call, offer: Offer, rank: int) -> tuple[bytes, ...] | None:
    givers = [offer.root] if offer.how.startswith("root") else list(offer.members)
    brought = [call.offers[giver].parts for giver in givers]
    parts = [one for one in brought if one is not None]
    if len(parts) < len(brought):
        return None
    if offer.how == "all":
        return tuple(part for one in parts for part in one)
    place, count = offer.members.index(rank), len(offer.members)
    if offer.how == "root":
        return parts[0]
    if offer.how == "root_mine":
        return _mine(parts[0], place, count)
    if offer.how == "mine":
        return tuple(part for one in parts for part in _mine(one, place, count))
    if call.reduced is None:
        call.reduced = _reduced(parts, offer)
    return call.reduced if offer.how == "reduce" else _mine(call.reduced, place, count)


def _mine(parts: tuple[bytes, ...], place: int, count: int) -> tuple[bytes, ...]:
    """Of parts for all members, one after another, those of one."""
    each = len(parts) // count
    return parts[place * each : (place + 1) * each]


def _reduced(brought: list[tuple[bytes, ...]], offer: Offer) -> tuple[bytes, ...]:
    """Each part reduced over the members."""
    return tuple(
        _combined([one[number] for one in brought if number < len(one)], getattr(torch, name), offer.reduce_op)
        for number, name in enumerate(offer.dtypes)
    )


def _combined(values: list[bytes], dtype: torch.dtype, name: str) -> bytes:
    """One part; nothing for lengths that differ, and for an operation that is not known here or not for this dtype."""
    combine = _REDUCE.get(name)
    if combine is None or not values[0] or len({len(value) for value in values}) > 1:
        return b""
    try:
        whole = reduce(combine, [from_bytes(value, dtype) for value in values])
    except (RuntimeError, TypeError):
        return b""
    return to_bytes((whole / len(values)).to(dtype) if name == "AVG" else whole)
