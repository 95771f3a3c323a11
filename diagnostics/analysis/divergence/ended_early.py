"""Ranks whose calls ended while their peers wait: did they end too early, or did the others make calls of their own?"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence.evidence_terms import Term, support
from diagnostics.analysis.divergence.find import Divergence, edited
from diagnostics.analysis.divergence.identity import on_path
from diagnostics.analysis.divergence.sequences import predict
from diagnostics.analysis.divergence.vote import settled
from diagnostics.analysis.divergence.whole_programs import PathCall, align
from diagnostics.contract.findings import LIKELY, POSSIBLE, PROBABLE, SEEN
from diagnostics.evidence.calls import Call

_ROUNDS = 2  # Whole rounds needed to identify a loop.


class WithinRound(Struct, frozen=True):
    """A rank whose calls end within a round of its peers' loop."""

    rank: int
    size: int
    """Number of calls in one round."""
    over: int
    """Calls that it made in the round in which it ended."""


def made_more(
    ended: Sequence[int], waiting: Sequence[int], all_shorter: list[Call], longer: list[Call], by: int
) -> Divergence | None:
    """Return the divergence of ranks that wait after `by` calls that those that ended in order never made.

    `all_shorter` are the calls of those that ended and `longer` those of the ranks that wait, all in one group. A call
    from a line that no ended rank reached, after which all calls match again, is an extra call.
    """
    start = max(longer[0].seq, all_shorter[0].seq) if longer and all_shorter else 0
    longer, shorter = ([call for call in calls if call.seq >= start] for calls in (longer, all_shorter))
    if not shorter or len(longer) != len(shorter) + by or not all(call.stack for call in (*longer, *shorter)):
        return None
    short, long = ([PathCall(call.key.name, call.wire, call.stack) for call in calls] for calls in (shorter, longer))
    changes = align(short, long)
    if [(change.kind, change.count) for change in changes] != [("insert", by)]:
        return None
    at = changes[0].minority_at
    exited_call, extra = shorter[min(at, len(shorter) - 1)], tuple(longer[at : at + by])
    agreeing, alone, is_new = len(short) - at, len(waiting) < len(ended), long[at] not in set(short)
    vote = settled((extra[0].key, extra[0].seq), ended, waiting)

    def made(place: Literal["within", "round"], term: Term, limit: float) -> Divergence:
        return edited(vote, (exited_call, extra[0]), ("insert", place), term, run=extra, ended="majority", limit=limit)

    rest = long[:at] + long[at + by :]
    # Calls from a line whose earlier calls fitted those of other lines only by chance? So it is when DDP sends its
    # buffers in the first forward pass after a step: in rank 0's evaluation, or in the others' next step.
    if fits := [call for call, met in zip(rest, short, strict=True) if call != met]:
        by_chance = fits.count(long[at + by - 1])
        if not (is_new and by_chance) or 2 * len(fits) > len(short):  # Ranks without a shared path cannot be compared.
            return None
        return made("within", support("made alone", by_chance), LIKELY)
    if is_new and (agreeing or alone):
        term = support("later calls agree", agreeing) if agreeing else support("ended in order")
        return made("within", term, SEEN if agreeing else PROBABLE)
    if not alone or agreeing:
        return None
    # The exited ranks made rounds of equal calls, and the extra call starts another one.
    prediction = predict([on_path(call) for call in all_shorter], on_path(extra[0]))
    return made("round", support("ended in order"), POSSIBLE) if prediction is not None and prediction.whole else None


def ended_in_round(
    rank: int, ahead: Sequence[int], calls: list[Call], pending: Call
) -> Divergence | WithinRound | None:
    """Return where in its peers' loop a rank ended that made `calls`, while those ahead wait in `pending`."""
    tokens = [on_path(call) for call in calls]
    prediction = predict(tokens, on_path(pending))
    if prediction is None or not prediction.whole:
        return None
    size = prediction.round
    start = len(tokens) - size
    while start > 0 and tokens[start - 1] == tokens[start - 1 + size]:
        start -= 1
    whole, over = divmod(len(tokens) - start, size)
    # No round begins where the calls begin to repeat if the record has lost its beginning, or if the first round
    # differs in part, as DDP's does: then the calls before come from the same lines.
    lines = {call.stack for call in calls[start : start + size]}
    opens = calls[start - 1].stack not in lines if start else calls[0].seq == 1
    if whole < _ROUNDS or (size > 1 and not opens):
        return None
    if over:
        return WithinRound(rank, size, over)
    # Two calls with known lines repeat in a loop; one may do so otherwise.
    limit = 1.0 if calls[-1].site is not None and size > 1 else POSSIBLE
    vote, term = settled((pending.key, pending.seq), ahead, (rank,)), support("between two rounds", whole)
    return edited(vote, (pending, calls[-1]), ("drop", "round"), term, ended="minority", limit=limit)


def together(cases: Sequence[Divergence]) -> Divergence:
    """Return the divergence of several ranks that each ended between two rounds."""
    first, ranks = cases[0], tuple(sorted(case.minority_rank for case in cases))
    others = tuple(rank for rank in first.vote.sides[0] if rank not in ranks)
    vote = settled((first.vote.key, first.vote.position), others, ranks)
    return replace(first, vote=vote, culprits=ranks)
