"""How a simulated rank issues a collective: what is recorded, what it contributes, and what it receives."""

import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from diagnostics.evidence.calls import USER_CALLS
from dtk.preflight import simulated_rank
from dtk.preflight.calls import NEW_GROUP
from dtk.preflight.exchange import How, Key, Offer, dtypes_of, packed
from dtk.preflight.simulated_rank import Expected, Issued, SimulatedRank
from dtk.record import frames as record_frames
from dtk.record.collectives import reduce_name
from dtk.record.signatures import KINDS, OBJECTS, Call, Kind
from dtk.simulate.mirror import MirrorGroup

_NEW_GROUP = Kind(NEW_GROUP, NEW_GROUP, Call)
ANY_RANK = -1  # Sender of a receive from any rank.
Share = tuple[Offer, list[Tensor] | None] | None
"""A rank's unnumbered offer to a call and the outputs for its result (None: it gets none); None if without values."""
Sizes = tuple[Sequence[int], Sequence[int]]  # Bytes sent to each member and expected of each; see `Entry`.


def current() -> SimulatedRank:
    """Return the rank that is currently simulated."""
    simulated = simulated_rank.current
    assert simulated is not None
    return simulated


class IssuingGroup(MirrorGroup):
    """A process group that records every call and finally returns the result of all ranks' inputs."""

    def _issue(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor] = (),
        *,
        share: Share = None,
        sizes: Sizes = ((), ()),
        root: int | None = None,
        **call: Any,
    ) -> Issued:
        """Record a call of torch.distributed's function `name` and return its work; `root` is a rank in the group."""
        simulated = current()
        tape, exchange = simulated.tape, simulated.exchange
        number = tape.issued
        frame = sys._getframe(2)
        object_call = user_call(frame)
        if object_call and not exchange.live:  # Objects, whose lengths may be placeholders.
            sizes = ((), ())
        if root is not None:
            call["root"] = (None, None) if root == ANY_RANK else (self._global(root), root)
        tape.stack, tape.sent, tape.taken = stack_of(frame), _brief(sizes[0]), _brief(sizes[1])
        kind = KINDS[name]
        token = simulated.log.begin(kind, Call(self, False, inputs, outputs, **call), object_call, frame)
        tape.sent = tape.taken = ()
        tensors = list(outputs or inputs)
        if token is None:
            return Issued(tape, number, tensors)
        simulated.log.end(token, 0, kind.p2p)
        due: list[Expected] = []
        if not kind.p2p:
            if not exchange.live:
                exchange.spoil((self.group_name, token[2]), tensors)
            if share is not None or exchange.live:
                group = tape.groups[token[0].index]
                way: Key = ((group.name, group.ranks),)
                due = simulated.expected.setdefault(way, [])
            if share is not None:
                offer, results = share
                assert tape.last is not None
                offer = offer._replace(key=(*way, token[2]), members=group.ranks, agreed=tape.last.wire)
                exchange.offer(offer)
                if results is not None:
                    needed = group.ranks if offer.root < 0 else (offer.root,)
                    due.append(Expected(exchange, offer.key, needed, results))
        return Issued(tape, number, tensors, due)

    def _share(
        self,
        how: How,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        opts: Any = None,
        root: int = -1,
        to: int = -1,
    ) -> Share:
        """Return this rank's offer to a call, before the mirror changes it; None if no rank receives it.

        `root` is the only giver and `to` the only receiver, by rank in the group; -1 means all.
        """
        exchange, mine = current().exchange, self.rank()
        if self.size() == 1 or not exchange.carries(how, (*inputs, *outputs)):
            return None
        op = reduce_name(opts.reduceOp) if how.startswith("reduce") else ""
        giver = self._global(root) if root >= 0 else -1
        takers = 1 if to >= 0 else self.size() - (root >= 0 and how == "root")
        parts = packed(inputs) if root in (-1, mine) else ()
        offer = Offer((), exchange.rank, (), (), how, op, giver, takers, dtypes_of(inputs), parts)
        takes = mine == to or (to < 0 and (root != mine or how == "root_mine"))
        return offer, [output.data for output in outputs] if takes else None

    def _global(self, rank: int) -> int:
        return c10d.get_process_group_ranks(self)[rank]


def made_group(ranks: Sequence[int], desc: str) -> None:
    """Record the creation of a group, with or without this rank: a collective of the default group."""
    simulated = current()
    members = tuple(ranks)
    simulated.made.append((members, desc))
    total = len(members)  # One number represents the list of ranks: it distinguishes lists as well as the list itself.
    for rank in members:
        total = (total * 1_000_003 + rank + 1) % 2_147_483_647
    call = Call(c10d._get_default_group(), False, (), amount=total, splits=list(members))
    number = simulated.tape.issued
    frame = sys._getframe(2)
    simulated.tape.stack = stack_of(frame)
    token = simulated.log.begin(_NEW_GROUP, call, "", frame)
    if token is not None:
        simulated.log.end(token, 0, False)
        simulated.tape.wait(number)


def _brief(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sizes[:1]) if len(set(sizes)) == 1 else tuple(sizes)


outermost: CodeType | None = None  # Code object that called the rank's own code.
_USER_CALLS = {*OBJECTS, "monitored_barrier"}
_plumbing: dict[CodeType, bool] = {}
_TORCH = torch.__path__[0]


def stack_of(frame: FrameType | None) -> str:
    """Return the user's frames, innermost first, and those of torch that name the call or its backward pass."""
    sites = []
    while frame is not None and frame.f_code is not outermost:
        code = frame.f_code
        hidden = _plumbing.get(code)
        if hidden is None:
            file, name = code.co_filename, code.co_name
            telling = file.startswith(_TORCH) and (name == "backward" or name in USER_CALLS)
            hidden = _plumbing[code] = not telling and file.startswith((*record_frames.PLUMBING, "<"))
        if not hidden:
            sites.append(f"{code.co_filename}:{frame.f_lineno}\t{code.co_qualname}")
        frame = frame.f_back
    return "\n".join(sites)


def user_call(frame: FrameType | None) -> str:
    """Return the object collective that this call belongs to; empty for any other call."""
    name = ""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        if frame.f_code.co_name in _USER_CALLS and frame.f_code.co_filename == c10d.__file__:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name
