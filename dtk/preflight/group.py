"""The process group of a simulated rank: records every call and wait, where the call was made, and answers as
`MirrorGroup` does; a rank that waits gets the result of all ranks' inputs.

Every communication path uses a process group: Python's functions, functional collectives, DTensor, DDP's reducer.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from diagnostics.evidence.calls import USER_CALLS
from dtk.preflight import exchange as exchanging
from dtk.preflight.calls import NEW_GROUP
from dtk.preflight.exchange import Expected, Issued, Key, Offer, SimulatedRank, dtypes_of, packed
from dtk.record import collectives as record_collectives
from dtk.record.collectives import reduce_name
from dtk.record.signatures import KINDS, OBJECTS, Call, Kind, listed, nbytes
from dtk.simulate.mirror import ANY_RANK, GroupCall, MirrorGroup, flat

_SPLIT = ("root_mine", "reduce_mine", "mine"), ("all", "mine")
"""Calls in which each member has a part of the inputs, and of the outputs."""
_OWN = ("dtk.preflight.", "dtk.simulate.")  # Modules whose frames are between torch and the recording.
Share = tuple[Offer, list[Tensor] | None]
"""A rank's unnumbered offer to a call, and the outputs for its result (None: it gets none)."""
_NEW_GROUP = Kind(NEW_GROUP, NEW_GROUP, Call)
outermost: CodeType | None = None  # Code object that called the rank's own code.
_USER_CALLS = {*OBJECTS, "monitored_barrier"}
_plumbing: dict[CodeType, bool] = {}
_TORCH = torch.__path__[0]


class _Side(NamedTuple):
    """The inputs or the outputs of a call."""

    tensors: Sequence[Any]
    members: int
    is_split: bool
    """Whether each member has a part of them."""
    rows: Sequence[int]
    """Rows of each part; empty if the parts are equal."""

    def by_member(self) -> list[Tensor]:
        """Return the tensors, or the parts of each in turn, by member."""
        if not self.is_split:
            return flat(self.tensors)
        lists = [self._parts(each) if isinstance(each, Tensor) else each for each in self.tensors]
        return [part for parts in zip(*lists, strict=False) for part in parts]

    def member_bytes(self) -> list[int]:
        """Return the bytes of each member's parts; one number if all are equal, none without tensors."""
        if not self.tensors:
            return []
        if not self.is_split or (isinstance(self.tensors[0], Tensor) and not self.rows):
            return [nbytes(flat(self.tensors)) // (self.members if self.is_split else 1)]
        parts, count = self.by_member(), len(self.tensors)
        return [nbytes(parts[at : at + count]) for at in range(0, len(parts), count)]

    def _parts(self, tensor: Tensor) -> Sequence[Tensor]:
        if self.rows:
            return torch.split(tensor.data[: sum(self.rows)], list(self.rows))
        whole = tensor.contiguous().data.view(-1)
        return list(whole.view(self.members, -1)) if whole.numel() else [whole] * self.members


class RecordingGroup(MirrorGroup):
    """Process group that records each call, then behaves as `MirrorGroup`."""

    def send(self, tensors: Any, destination: int, tag: int) -> Any:
        """Offer the values to the receiver."""
        work = super().send(tensors, destination, tag)
        current().send(self.group_name, self._global(destination), tag, listed(tensors))
        return work

    def recv(self, tensors: Any, source: int, tag: int) -> Any:
        """Return zeros until the rank waits, and then the sender's values."""
        work = super().recv(tensors, source, tag)
        if source == ANY_RANK:
            current().exchange.made_up = True  # Which sender comes first is not deterministic.
            return work.receives((self.rank() + 1) % self.size(), [])
        return work.receives(source, current().receive(self.group_name, self._global(source), tag, listed(tensors)))

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        """Return zeros, from the next rank."""
        return self.recv(tensors, ANY_RANK, tag)

    def _call(self, call: GroupCall, answer: Callable[[], object]) -> Issued:
        share = self._share(call)  # Before the answer changes the inputs.
        answer()
        return self._issue(call, share)

    def _share(self, call: GroupCall) -> Share | None:
        """Return this rank's offer to a call; None if no rank receives it."""
        exchange, mine, how = current().exchange, self.rank(), call.how
        gives = how is not None and how.startswith("root")
        if how is None or self.size() == 1 or not (gives or exchange.live):
            return None
        inputs, outputs = (side.by_member() for side in self._sides(call))
        if not exchange.carries(how, (*inputs, *outputs)):
            return None
        op = reduce_name(call.opts.reduceOp) if how.startswith("reduce") else ""
        giver, taker = (call.root, None) if gives else (None, call.root)
        takers = self.size() - (how == "root") if taker is None else 1
        parts = packed(inputs) if giver in (None, mine) else ()
        root = -1 if giver is None else self._global(giver)
        offer = Offer((), exchange.rank, (), (), how, op, root, takers, dtypes_of(inputs), parts)
        takes = taker in (None, mine) and (giver != mine or how == "root_mine")
        return offer, [output.data for output in outputs] if takes else None

    def _sides(self, call: GroupCall) -> Iterator[_Side]:
        splits = call.splits or ((), ())
        for tensors, split, rows in zip((call.inputs, call.outputs), _SPLIT, splits, strict=True):
            yield _Side(tensors, self.size(), call.how in split, rows)

    def _sent_and_taken(self, call: GroupCall) -> tuple[list[int], list[int]]:
        """Return the bytes sent to each member and expected of each; empty where the members agree on the amount."""
        if call.how in ("reduce", "root"):
            return [], []
        sent, taken = (side.member_bytes() for side in self._sides(call))
        if call.how is None:
            return sent, taken
        return sent or taken, taken or sent  # Only the root of a gather or scatter has all parts.

    def _issue(self, call: GroupCall, share: Share | None) -> Issued:
        """Record a call of torch.distributed's function and return its work."""
        simulated, kind = current(), KINDS[call.name]
        tape, exchange = simulated.tape, simulated.exchange
        number = tape.issued
        frame: Any = sys._getframe(1)
        while frame.f_globals["__name__"].startswith(_OWN):
            frame = frame.f_back
        inputs, outputs = flat(call.inputs), [] if call.outputs is call.inputs else flat(call.outputs)
        object_call = user_call(frame)
        sizes = self._sent_and_taken(call)
        if object_call and not exchange.live:  # Objects, whose lengths may be placeholders.
            sizes = [], []
        amount = -1
        if kind.typed:
            amount = sum(tensor.numel() for tensor in inputs)
        elif kind.wire in ("broadcast", "all_gather"):
            amount = nbytes(outputs or inputs)
        end = call.root if call.peer is None else call.peer
        root = None if end is None else (None, None) if end == ANY_RANK else (self._global(end), end)
        reduce_op = call.opts.reduceOp if kind.typed else None
        tape.stack, tape.sent, tape.taken = stack_of(frame), _brief(sizes[0]), _brief(sizes[1])
        recorded = Call(self, False, inputs, outputs, amount, reduce_op, root, call.tag, call.splits)
        token = simulated.log.begin(kind, recorded, object_call, frame)
        tape.sent = tape.taken = ()
        tensors = outputs or inputs
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

    def _global(self, rank: int) -> int:
        return c10d.get_process_group_ranks(self)[rank]


def _brief(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sizes[:1]) if len(set(sizes)) == 1 else tuple(sizes)


def current() -> SimulatedRank:
    """Return the rank that is currently simulated."""
    simulated = exchanging.current
    assert simulated is not None
    return simulated


def made_group(ranks: Sequence[int], desc: str) -> None:
    """Record the creation of a group, with or without this rank: a collective of the default group."""
    simulated = current()
    members = tuple(ranks)
    simulated.new_groups.append((members, desc))
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


def stack_of(frame: FrameType | None) -> str:
    """Return the user's frames, innermost first, and those of torch that name the call or its backward pass."""
    sites = []
    while frame is not None and frame.f_code is not outermost:
        code = frame.f_code
        hidden = _plumbing.get(code)
        if hidden is None:
            file, name = code.co_filename, code.co_name
            telling = file.startswith(_TORCH) and (name == "backward" or name in USER_CALLS)
            hidden = _plumbing[code] = not telling and file.startswith((*record_collectives.PLUMBING, "<"))
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
