"""A process that gloo ended because sizes did not fit leaves no dump; its ring still tells which call it made.

Where no peer made that call and the peers are in DDP's backward pass, which rings do not see, the two met. Decides
only that; a mismatch in which all calls were recorded is `divergence`'s matter.
"""

from collections.abc import Iterator
from dataclasses import replace

from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.compare.difference import in_backward, token
from diagnostics.detectors.hang.compare.loops import apart
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.disagree import divergence
from diagnostics.detectors.hang.disagree.vote import Vote
from diagnostics.detectors.hang.disagree.words import Split
from diagnostics.detectors.hang.ended.ends import mismatch_facts
from diagnostics.detectors.hang.survey.one_rank import SNAPSHOTS
from diagnostics.detectors.hang.waiting.waits import Operation
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import LogFact, shortened
from diagnostics.findings import EvidenceItem, Finding


def find(context: Context) -> list[Finding]:
    """Nothing where a mismatch is known already; else one finding, or two that explain the same."""
    facts = mismatch_facts(context.evidence)
    if not facts or context.blamed:
        return []
    splits = list(_splits(context))
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


def _splits(context: Context) -> Iterator[Split]:
    """Ranks in a call that nobody else made, against peers in the backward pass."""
    for operation, ranks in sorted(context.waits.waiting.items()):
        key, peers = operation.key, context.waits.absent[operation]
        if key.recorder != SNAPSHOTS or operation.peer >= 0 or not peers or len(ranks) > len(peers):
            continue
        lines = context.survey.groups[key].lines
        inside = {rank: call for rank in peers if (call := _reduces(context, rank, operation)) is not None}
        waits = any(rank in lines and lines[rank].pending is not None for rank in peers)
        sites = {call.site for call in inside.values()}
        if waits or len(sites) != 1 or context.waits.complete[operation]:
            continue
        usual_rank, usual = next(iter(sorted(inside.items())))
        odd = context.waits.calls[ranks[0], operation]
        if token(odd) in {token(call) for call in context.reading.calls(ranks[0], key) if call.seq < odd.seq}:
            continue  # A call of the loop: it may have left backward without a bucket.
        usual = replace(usual, stack=usual.stack[:1])
        before = "it is its first call from that line"
        difference = apart(odd, usual, [usual], ("fewer", (usual, odd), before), ("extra", (odd,)), "it made")
        if difference is None:
            continue
        vote = Vote(key, operation.seq, (tuple(peers), tuple(ranks)), (1, 2), ())
        said = "" if difference.kind != "fewer" else _left(tuple(ranks), odd, tuple(peers), usual)
        yield Split(vote, usual, odd, difference, usual_rank, ranks[0], tuple(ranks), False, odd.created_s or 0.0, said)


def _reduces(context: Context, rank: int, operation: Operation) -> Call | None:
    """The last call of a rank in this group, if another recorder than the ring has it, from the backward pass."""
    calls = []
    for key, table in sorted(context.survey.groups.items()):
        if key.recorder != SNAPSHOTS and (key.name, key.desc) == (operation.key.name, operation.key.desc):
            calls += [table.lines[rank].last] if rank in table.lines else []
    last = calls[-1] if calls else None
    return last if last is not None and last.site is not None and in_backward(last) else None


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
