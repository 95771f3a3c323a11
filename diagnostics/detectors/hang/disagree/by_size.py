"""A process that gloo ended because sizes did not fit leaves no dump; its ring still tells which call it made.

Where no peer made that call and the peers are in DDP's backward pass, which rings do not see, the two met. Decides
only that; a mismatch in which all calls were recorded is `divergence`'s matter.
"""

from collections.abc import Iterator
from dataclasses import replace

from diagnostics.analysis.divergence.difference import Difference, Kind, in_backward, token
from diagnostics.analysis.divergence.loops import apart
from diagnostics.analysis.divergence.vote import Vote
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import EvidenceItem, Finding
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.disagree import divergence
from diagnostics.detectors.hang.disagree.words import Split
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import LogFact, shortened
from diagnostics.evidence.rank_endings import mismatch_facts


def find(context: Context) -> list[Finding]:
    """Nothing where a mismatch is known already; else one finding, or two that explain the same."""
    facts = mismatch_facts(context.evidence)
    if not facts or context.blamed:
        return []
    splits = list(_splits(context, {fact.rank for fact in facts}))
    if len(splits) != 1:
        return _by_log(context, facts)
    split = splits[0]
    context.blamed |= set(split.blamed)
    context.settled |= set(split.vote.all)
    seen = tuple(EvidenceItem("log", fact.file, fact.text, fact.line) for fact in facts[:2])
    added = f" Gloo ended a process because their sizes did not fit: {shortened(facts[0].text.strip(), 80)}."
    return [
        replace(one, summary=one.summary + added, position=None, evidence=(*one.evidence, *seen))
        for one in divergence.findings(context, split)
    ]


def _splits(context: Context, ended: set[int | None]) -> Iterator[Split]:
    """Ranks in a call that nobody else made before gloo ended a process, against peers in the backward pass."""
    for operation in sorted(context.waits.waiting):
        if operation.key.recorder != SNAPSHOTS or operation.peer >= 0:
            continue
        ranks, peers, swallowed = _sides(context, operation, ended)
        if not peers or len(ranks) > len(peers):
            continue
        odd = context.waits.calls[ranks[0], operation]
        inside = {rank: call for rank in peers if (call := _reduces(context, rank, operation, odd)) is not None}
        own = context.reading.calls(ranks[0], operation.key)
        # A call of the loop tells nothing: the rank may have left backward without a bucket.
        if len({call.site for call in inside.values()}) != 1 or token(odd) in {
            token(c) for c in own if c.seq < odd.seq
        }:
            continue
        usual_rank, usual = min(inside.items())
        difference = _difference(odd, usual, swallowed)
        if difference is None:
            continue
        vote = Vote(operation.key, operation.seq, (tuple(peers), tuple(ranks)), (1, 2), ())
        said = "" if difference.kind != "fewer" else _left(tuple(ranks), odd, tuple(peers), usual)
        yield Split(vote, usual, odd, difference, usual_rank, ranks[0], tuple(ranks), False, odd.created_s or 0.0, said)


def _sides(context: Context, operation: Operation, ended: set[int | None]) -> tuple[list[int], list[int], bool]:
    """Ranks in the call, ranks that are elsewhere, and whether these came to it later.

    Ranks that swallow the error that the end of another is to them go on to the same call.
    """
    waits = context.waits
    ranks, peers = waits.waiting[operation], list(waits.absent[operation])
    if not peers and ended & set(ranks):
        return [one for one in ranks if one in ended], [one for one in ranks if one not in ended], True
    lines = context.survey.groups[operation.key].lines
    busy = any(rank in lines and lines[rank].pending is not None for rank in peers)
    return ranks, [] if busy or waits.complete[operation] else peers, False


def _difference(odd: Call, usual: Call, swallowed: bool) -> Difference | None:
    if swallowed:
        return Difference("fewer", 0.85, (usual, odd), "its peers came to that call after it")
    left: tuple[Kind, tuple[Call, ...], str] = ("fewer", (usual, odd), "it is its first call from that line")
    inside = _one_line(usual, odd)
    return apart(odd, inside, [inside], left, ("extra", (odd,)), "it made")


def _one_line(usual: Call, odd: Call) -> Call:
    """With one line, as rings keep the innermost one only: of the function that both are in, else the innermost."""
    site = odd.site
    if site is None:
        return replace(usual, stack=usual.stack[:1])
    for frame in usual.stack:
        if (frame.file, frame.function) == (site.file, site.function.rpartition(".")[2]):
            return replace(usual, stack=(replace(frame, function=site.function),))
    return replace(usual, stack=usual.stack[:1])


def _reduces(context: Context, rank: int, operation: Operation, odd: Call) -> Call | None:
    """The last call of a rank that cannot be `odd`, if another recorder than the ring has it, of the backward pass."""
    last = None
    for key, table in sorted(context.survey.groups.items()):
        if key.recorder != SNAPSHOTS and (key.name, key.desc) == (operation.key.name, operation.key.desc):
            last = table.lines[rank].last if rank in table.lines else last
            if last is not None and _fits(last, odd):
                others = (call for call in reversed(context.reading.calls(rank, key)) if not _fits(call, odd))
                last = next(others, None)
    return last if last is not None and last.site is not None and in_backward(last) else None


def _fits(one: Call, other: Call) -> bool:
    """Whether gloo takes the two for one call: the ring knows the ReduceOp, the flight recorder does not."""
    return (one.wire.op, one.wire.amounts, one.wire.dtypes) == (other.wire.op, other.wire.amounts, other.wire.dtypes)


def _left(ranks: tuple[int, ...], odd: Call, peers: tuple[int, ...], usual: Call) -> str:
    return (
        f"{say.sentence(say.ranks(ranks))} left the loop that {say.ranks(peers)} {say.verb(peers, 'is', 'are')} still "
        f"in: {say.call(odd, False)} meets {say.call(usual, False)} of the backward pass."
    )


def _by_log(context: Context, facts: list[LogFact]) -> list[Finding]:
    """Gloo or torch said itself that sizes did not fit, and no dump shows where: the ranks stay unnamed."""
    fact = facts[0]
    context.settled |= {one.rank for one in facts if one.rank is not None}
    victims = {one.rank for one in facts if one.rank is not None}
    return [
        Finding(
            cause="hang.signature_mismatch",
            status="confirmed",
            summary=(
                f"Ranks brought different sizes to one collective: {shortened(fact.text.strip(), 200)}. The rank that "
                "aborted is the one "
                "that met the wrong size, not the one that brought it; which one did is not recorded."
            ),
            confidence=0.75,
            victims=tuple(sorted(victims)),
            cost=context.cost(),
            evidence=tuple(EvidenceItem("log", one.file, one.text, one.line) for one in facts[:4]),
            remedies=say.remedies(
                context.evidence,
                "compare shapes and dtypes of this collective over the ranks",
                "gloo ends a process whose message does not fit",
            ),
            measured=f"{len(facts)} messages",
            missing=say.RECORD,
        )
    ]
