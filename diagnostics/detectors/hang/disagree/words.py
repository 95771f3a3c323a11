"""A divergence put into words: what happened, what mends it, and why it is no other kind. Decides nothing."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from diagnostics.analysis.divergence.difference import Difference, Kind
from diagnostics.analysis.divergence.vote import Vote
from diagnostics.contract.findings import Remedy
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.calls import Call

CAUSES: dict[Kind, str] = {
    "signature": "hang.signature_mismatch",
    "operation": "hang.collective_mismatch",
    "skipped": "hang.conditional_collective",
    "extra": "hang.conditional_collective",
    "fewer": "hang.uneven_iterations",
    "more": "hang.uneven_iterations",
    "bucket": "hang.unused_parameters",
}


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one rank sends another in calls that meet, where that one expects another length."""

    sender: int
    sent_bytes: int
    receiver: int
    expected_bytes: int


@dataclass(slots=True)
class Split:
    """A divergence, looked at closely."""

    vote: Vote
    usual: Call
    odd: Call
    difference: Difference
    usual_rank: int
    odd_rank: int
    blamed: tuple[int, ...]
    tie: bool
    time_s: float
    said: str = ""
    """What happened, where it is known better than the calls tell; empty = in this module's words."""
    whole: bool = False
    """Whether the ranks' calls are known to their very end, as in a simulation."""
    ended: bool = False
    """Whether the odd side makes no call there: `odd` is its last one."""
    transfer: Transfer | None = None
    """For a signature: the lengths, where these are what differs."""


def siblings(split: Split) -> dict[str, tuple[str, str]]:
    """Why the divergence is none of the other kinds."""
    usual, odd, difference = split.usual, split.odd, split.difference
    same = usual.wire.op == odd.wire.op
    meet = f"position {odd.seq}: {say.call(odd, False)} meets {say.call(usual, False)}"
    at = f"position {odd.seq} of group {say.label(split.vote.key)}"
    reasons = {
        "hang.collective_mismatch": f"Both sides issue {usual.wire.op} at {at}."
        if same
        else f"The operations at {at} differ only because of what was confirmed: {difference.why}.",
        "hang.signature_mismatch": f"At {at} it is another call, not other arguments of one: {difference.why}."
        if same
        else f"The ranks issue different operations at {at}.",
        "hang.conditional_collective": f"No call is left out or added: {difference.why}.",
        "hang.uneven_iterations": f"No rank left the loop or ran on with it: {difference.why}.",
        "hang.unused_parameters": f"No rank left backward early: {difference.why}.",
    }
    found = {CAUSES[kind] for kind in (difference.kind, difference.other) if kind is not None}
    return {cause: (why, meet) for cause, why in reasons.items() if cause not in found}


def pair(split: Split) -> tuple[Split, Split]:
    """The divergence as each of the two kinds that explain it."""
    first, other = split.difference, split.difference.other
    assert other is not None
    calls = (split.odd,) if other == "extra" else (split.usual,)
    return (
        replace(split, difference=replace(first, other=None)),
        replace(split, difference=replace(first, kind=other, calls=calls, other=None)),
    )


def either(split: Split, peers: tuple[int, ...]) -> str:
    """What happened, where its line may stand in the loop or behind it."""
    odd, usual = split.odd, split.usual
    side = next((side for side in split.vote.sides if split.odd_rank in side), (split.odd_rank,))
    rest = peers or tuple(rank for rank in split.vote.all if rank not in side)
    if split.difference.kind == "more":
        side, rest, odd, usual = rest, side, usual, odd
    return (
        f"{say.sentence(say.ranks(side))} {say.verb(side, 'is', 'are')} in {say.call(odd, False)} while {_rest(rest)} "
        f"{say.verb(rest, 'goes', 'go')} on with the loop: {say.call(usual, False)}, at {_at(split)}. Either that line "
        f"stands behind the loop, so that {say.ranks(side)} ran fewer rounds, or a condition within the loop calls it "
        "on some ranks only: the calls do not tell which."
    )


def summary(split: Split, peers: tuple[int, ...]) -> str:
    """What happened, to whom, where: one or two sentences."""
    side = next((side for side in split.vote.sides if split.odd_rank in side), (split.odd_rank,))
    if split.tie:
        peers = tuple(rank for rank in split.vote.all if rank not in side)
    text = split.said or _SENTENCES[split.difference.kind](split, side, peers)
    if split.transfer is not None:
        text = _lengths(split.transfer, split)
    elif split.whole and split.difference.kind in {"fewer", "more"}:
        text = _rounds(split, side, peers)
    if split.tie and len(split.vote.sides) > 2 and len(split.vote.sides[0]) == 1:
        text += " No two ranks agree, so none of them is the odd one out."
    elif split.tie:
        text += (
            f" It is a tie ({' against '.join(str(len(one)) for one in split.vote.sides)}): either side may be "
            "the wrong one."
        )
    elif third := set(split.blamed) - set(side):
        text += f" {say.sentence(say.ranks(third))} {say.verb(third, 'differs', 'differ')} from both."
    return text


def _rest(peers: tuple[int, ...]) -> str:
    return say.ranks(peers) if peers else "the others"


def _at(split: Split) -> str:
    return f"position {split.odd.seq} of group {say.label(split.vote.key)}"


def _first(split: Split) -> str:
    """The first call that was left out or added, and how many more."""
    count = len(split.difference.calls)
    return say.call(split.difference.calls[0]) + (f" and {count - 1} more" if count > 1 else "")


def _signature(split: Split, side: tuple[int, ...], peers: tuple[int, ...]) -> str:
    odd, usual = split.odd, split.usual
    text = (
        f"{say.sentence(say.ranks(side))} {say.verb(side, 'calls', 'call')} {say.call(odd, False)} where "
        f"{_rest(peers)} {say.verb(peers, 'has', 'have')} {say.call(usual, False)}, at {_at(split)}."
    )
    return text + (_hidden(odd, usual) if odd.text == usual.text else "")


def _operation(split: Split, side: tuple[int, ...], peers: tuple[int, ...]) -> str:
    return (
        f"{say.sentence(say.ranks(side))} {say.verb(side, 'calls', 'call')} {say.call(split.odd, False)} where "
        f"{_rest(peers)} {say.verb(peers, 'calls', 'call')} {say.call(split.usual, False)}, at {_at(split)}."
    )


def _skipped(split: Split, side: tuple[int, ...], peers: tuple[int, ...]) -> str:
    return (
        f"{say.sentence(say.ranks(side))} left out {_first(split)} that {_rest(peers)} "
        f"{say.verb(peers, 'waits', 'wait')} in; {say.verb(side, 'it is', 'they are')} already in "
        f"{say.call(split.odd, False)}."
    )


def _extra(split: Split, side: tuple[int, ...], peers: tuple[int, ...]) -> str:
    return (
        f"Only {say.ranks(side)} {say.verb(side, 'calls', 'call')} {_first(split)}; {_rest(peers)} "
        f"{say.verb(peers, 'is', 'are')} in "
        f"{say.call(split.usual, False)}."
    )


def _fewer(split: Split, side: tuple[int, ...], peers: tuple[int, ...]) -> str:
    return (
        f"{say.sentence(say.ranks(side))} left the loop that {_rest(peers)} {say.verb(peers, 'is', 'are')} still in: "
        f"{say.call(split.odd, False)} meets {say.call(split.usual, False)} at {_at(split)}."
    )


def _more(split: Split, side: tuple[int, ...], peers: tuple[int, ...]) -> str:
    return (
        f"{say.sentence(say.ranks(side))} {say.verb(side, 'runs', 'run')} on with {say.call(split.odd, False)} where "
        f"{_rest(peers)} {say.verb(peers, 'is', 'are')} in {say.call(split.usual, False)}, at {_at(split)}."
    )


def _rounds(split: Split, side: tuple[int, ...], peers: tuple[int, ...]) -> str:
    """Another number of iterations, where the whole histories tell it."""
    odd, usual = say.call(split.odd), say.call(split.usual)
    meets = (
        f"{odd} is the last call on one side, the other goes on to {usual}" if split.ended else f"{odd} meets {usual}"
    )
    return (
        f"{say.sentence(say.ranks(side))} {say.verb(side, 'goes', 'go')} through the loop a different number of times "
        f"than {_rest(peers)} ({split.difference.why}): {meets}."
    )


def _lengths(transfer: Transfer, split: Split) -> str:
    return (
        f"Rank {transfer.sender} sends {transfer.sent_bytes} bytes to rank {transfer.receiver} in "
        f"{say.call(split.odd)}; rank {transfer.receiver} expects {transfer.expected_bytes} bytes of it in "
        f"{say.call(split.usual)}."
    )


def _bucket(split: Split, side: tuple[int, ...], peers: tuple[int, ...]) -> str:
    return (
        f"{say.sentence(say.ranks(side))} left backward without {say.call(split.usual)}, which {_rest(peers)} "
        f"{say.verb(peers, 'waits', 'wait')} in: some of its parameters got no gradient in this step."
    )


_SENTENCES: dict[Kind, Callable[[Split, tuple[int, ...], tuple[int, ...]], str]] = {
    "signature": _signature,
    "operation": _operation,
    "skipped": _skipped,
    "extra": _extra,
    "fewer": _fewer,
    "more": _more,
    "bucket": _bucket,
}


def _hidden(odd: Call, usual: Call) -> str:
    """What differs though both are printed alike; empty when nothing that is known does."""
    names = ("operation", "number of elements", "dtype", "root", "ReduceOp")
    parts = [name for name, one, other in zip(names, odd.wire, usual.wire, strict=True) if one != other]
    return f" What differs is the {' and the '.join(parts)}." if parts else ""


def remedies(context: Context, split: Split) -> tuple[Remedy, ...]:
    """The override if there is one, and the change at file:line."""
    kind, odd = split.difference.kind, split.odd
    missed = split.difference.calls[0]
    here = place(odd)
    there = place(split.usual)
    override = None
    if split.transfer is not None:
        change = (
            f"let what rank {split.transfer.sender} sends at {here} be as long as what rank "
            f"{split.transfer.receiver} expects at {there}"
        )
        why = "both ends of a transfer need the same number of bytes: exchange the sizes before the data"
    elif kind == "signature":
        change = f"make {here} use the same shape, dtype, root and ReduceOp on every rank"
        why = "a collective needs equal arguments on all ranks of its group"
    elif kind == "operation":
        change = "let all ranks take the same branch: "
        if odd.site is not None and split.usual.site is not None:
            change += f"{here} and {there} must be the same collective"
        else:
            change += f"{odd.text} and {split.usual.text} meet at position {odd.seq} and must be the same collective"
        why = "collectives are matched by their order in the group, not by name"
    elif kind == "bucket":
        ddp = split.usual.wire.op == "all_reduce"
        change = f"let every parameter take part in the loss{', or set find_unused_parameters=True in DDP' * ddp}"
        change += f" (waits at {there})"
        why = "gradients are reduced only when they are ready"
        if ddp:
            why = "DDP reduces a bucket only when all its gradients are ready"
        override = ("strategy.find_unused_parameters=true", "DDP then marks parameters without a gradient as ready")
    elif kind in {"fewer", "more"}:
        change = (
            "let all ranks agree on the number of steps (all_reduce a stop flag, drop uneven batches, or DDP's "
            f"join) around {there}"
        )
        why = "each rank must run the loop equally often"
    elif kind == "skipped":
        change = f"call {missed.text} at {place(missed)} on all ranks, or on none"
        why = "a collective inside a condition that differs by rank leaves the others waiting"
    else:
        change = f"take the condition off {place(missed)}, so that all ranks call {missed.text} or none"
        why = "a collective that only some ranks call meets another one of their peers"
    return say.remedies(context.evidence, change, why, override if _is_ddp(context) else None)


def _is_ddp(context: Context) -> bool:
    run = context.evidence.run
    return run is not None and run.get("strategy.name") in {"ddp", "zero1"}


def place(call: Call) -> str:
    """`/job/train.py:12`, or the position where stacks were not recorded."""
    return f"{call.site.file}:{call.site.line}" if call.site else f"position {call.seq}"
