"""A rank ran fewer or more iterations of the loop than the others."""

from diagnostics.analysis.divergence.whole_programs import WithinRound
from diagnostics.analysis.stall.endings import EarlierStep, ended_in_order
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _divergence, _parts
from diagnostics.causes.hang._divergence import Disagreement, Reading
from diagnostics.causes.hang._endings import LAUNCHER_LOG
from diagnostics.contract.findings import CERTAIN, CITED, Finding, Remedy
from diagnostics.contract.formatting import Phrase

_TEXTS = Texts(__file__)


def _summary(facts: Disagreement) -> str:
    divergence = facts.divergence
    counts: Phrase | str = ""
    row = "fewer" if facts.kind == "fewer_iterations" else "runs_on"
    if divergence.whole:
        run, expected = divergence.iterations or (0, 0)
        counts = _TEXTS.phrase("counts", run=run, expected=expected) if run != expected else ""
        row = "whole_ended" if divergence.ended else "whole"
    elif divergence.ended:
        row = "whole_ended" if divergence.ended == "minority" else "goes_on"
    skipped = facts.filled(_TEXTS, "or_skipped", skip=facts.skip) if facts.skip else ""
    return f"{facts.filled(_TEXTS, row, times=facts.kind.partition('_')[0], counts=counts)} {skipped}".rstrip()


def _remedies(facts: Disagreement) -> tuple[Remedy, ...]:
    divergence, explanation = facts.divergence, facts.divergence.explanation
    in_loop = divergence.minority if facts.kind == "more_iterations" else divergence.majority
    remedies = [_divergence.TEXTS.remedy("run_equally_often", place=in_loop.place)]
    if facts.skip:
        remedies = [_TEXTS.remedy("skip_alike", place=in_loop.place, skip=facts.skip)]
    kinds = {divergence.kind, *explanation.alternatives}
    if "added" in kinds:
        remedies.append(_divergence.fix_call(divergence.minority, divergence.majority, added=True))
    if "left_out" in kinds:
        call = explanation.calls[0] if divergence.kind == "left_out" else divergence.majority
        remedies.append(_divergence.fix_call(call, divergence.minority))
    return tuple(remedies)


READING = Reading(_TEXTS, ("fewer_iterations", "more_iterations"), _remedies, _summary)


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first call in which the ranks differ, stacks, and ranks that exited normally before others."""
    return _divergence.decided(stall, READING, _ended(stall), otherwise=_otherwise)


def _ended(stall: Stall) -> list[Finding]:
    """Return findings about ranks that exited normally one iteration before or after the others."""
    early, job, exited = stall.departure, stall.job, ended_in_order(stall.endings)
    if exited is None or job.evidence.doubt:
        return []
    if early is None:
        silent = tuple(rank for rank in exited.ranks if rank not in job.survey.ranks)
        facts = _TEXTS.facts("no_dump" if silent else "no_rounds", who=silent or exited.ranks)
        return [Finding(status="undecided", facts=facts, confidence=0.0, victims=exited.victims)]
    if not isinstance(early, EarlierStep):
        return []
    waits = _TEXTS.phrase("peer_waits", call=early.peer_call) if early.peer_call else ""
    return [
        _parts.confirmed(
            job,
            _TEXTS.facts("earlier_step", early=early, who=exited.ranks, agree=_divergence.EQUALLY_OFTEN, waits=waits),
            CERTAIN,  # Heartbeats may lag behind by a step.
            evidence=tuple(end.evidence for end in exited.endings[:CITED]),
            seen={early.peer: _parts.says("in_step", step=early.peer_step)},
            ranks=exited.ranks,
            victims=early.peers,
            step=early.step,
            where=(*_parts.last_places(early.last)[:1], *_parts.where(early.peer, early.peer_call)),
        )
    ]


def _otherwise(stall: Stall, waits: bool) -> Finding | None:
    job, ended = stall.job, stall.departure
    if waits and (unknown := job.without_ending()):
        return _parts.ending_unknown(LAUNCHER_LOG, unknown)
    if isinstance(ended, WithinRound):
        return _TEXTS.ruled_out(rank=ended.rank, over=ended.over, size=ended.size)
    return None


CAUSE = declared(__file__, explain, decide)
