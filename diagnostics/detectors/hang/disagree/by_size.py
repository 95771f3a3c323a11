"""A process that gloo ended because sizes did not fit leaves no dump; its ring still tells which call it made.

Where no peer made that call and the peers are in DDP's backward pass, which rings do not see, the two met. Decides
only that; a mismatch in which all calls were recorded is `divergence`'s matter.
"""

from collections.abc import Iterator
from dataclasses import replace

from diagnostics.analysis.divergence import (
    Divergence,
    Explanation,
    Vote,
    at_line,
    differing_parts,
    explain_exit,
    in_backward,
)
from diagnostics.analysis.divergence.evidence_terms import position
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import EvidenceItem, Finding
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.disagree import divergence
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import LogFact, shortened
from diagnostics.evidence.rank_endings import mismatch_facts


def find(context: Context) -> list[Finding]:
    """Return nothing where a mismatch is known already; else one finding, or two that explain the same."""
    facts = mismatch_facts(context.evidence)
    if not facts or context.blamed:
        return []
    divergences = list(_divergences(context, {fact.rank for fact in facts}))
    if len(divergences) != 1:
        return _by_log(context, facts)
    context.blamed |= set(divergences[0].culprits)
    context.settled |= set(divergences[0].vote.present)
    return divergence.findings(context, divergences[0], facts[0].text)


def _divergences(context: Context, ended: set[int | None]) -> Iterator[Divergence]:
    """Ranks in a call that nobody else made before gloo ended a process, against peers in the backward pass."""
    for operation in sorted(context.waits.waiting):
        if operation.key.recorder != SNAPSHOTS or operation.peer >= 0:
            continue
        ranks, peers, swallowed = _sides(context, operation, ended)
        if not peers or len(ranks) > len(peers):
            continue
        minority = context.waits.calls[ranks[0], operation]
        inside = {rank: call for rank in peers if (call := _reduces(context, rank, operation, minority)) is not None}
        before = {at_line(call) for call in context.reading.calls(ranks[0], operation.key) if call.seq < minority.seq}
        # A call of the loop tells nothing: the rank may have left backward without a bucket.
        if len({call.site for call in inside.values()}) != 1 or at_line(minority) in before:
            continue
        majority_rank, majority = min(inside.items())
        if swallowed:
            found: Explanation | None = Explanation(
                "insert", "behind", (majority, minority), (position("peers came later"),)
            )
        else:
            found = explain_exit(minority, _one_line(majority, minority))
        if found is not None:
            vote = Vote(operation.key, operation.seq, (tuple(peers), tuple(ranks)))
            yield Divergence(vote, majority_rank, ranks[0], majority, minority, found, tuple(ranks), False)


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
            if last is not None and not differing_parts(last.wire, odd.wire):
                others = (
                    call for call in reversed(context.reading.calls(rank, key)) if differing_parts(call.wire, odd.wire)
                )
                last = next(others, None)
    return last if last is not None and last.site is not None and in_backward(last) else None


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
