"""Gradients never became ready on some ranks, so that a bucket was not reduced there."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._divergence import Disagreement, Reading, decided
from diagnostics.contract.findings import SEEN, Finding, Remedy
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.model import shortened

_TEXTS = Texts(__file__)


def _remedies(facts: Disagreement) -> tuple[Remedy, ...]:
    majority = facts.divergence.majority
    if majority.wire.op == "all_reduce":
        return under_ddp(f" (waits at {majority.place})", is_dtk_run=facts.ddp)
    return (_TEXTS.remedy("take_part", place=majority.place),)


def under_ddp(at: str, *, is_dtk_run: bool) -> tuple[Remedy, ...]:
    """Return the remedies under DDP; `at` is appended to the code change."""
    code = _TEXTS.remedy("in_ddp", at=at)
    return (_TEXTS.remedy("override"), code) if is_dtk_run else (code,)


READING = Reading(_TEXTS, ("gradients_not_ready",), _remedies)


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first call in which the ranks differ, and from DDP's own messages."""
    case, job, findings = stall.ddp_unused, stall.job, list[Finding]()
    if case is not None:
        # Ranks below the highest one are inferred, not seen.
        known = range(job.evidence.world_size) if job.evidence.world_size else {*job.survey.ranks, *job.endings}
        names = f" ({shortened(case.names, 120)})" if case.names else ""
        fixes = under_ddp("", is_dtk_run=job.is_dtk_run)
        findings.append(
            _parts.confirmed(
                job,
                _TEXTS.facts(who=case.ranks or "a rank", names=names, messages=len(case.facts), fixes=fixes),
                SEEN,
                evidence=_parts.lines(case.facts[:4]),
                ranks=case.ranks,
                victims=tuple(sorted({*known} - {*case.ranks, UNNAMED})),
                where=tuple(at for e in case.endings for at in _parts.where(e.rank, own_line(e.frames), e.summary)),
            )
        )
    return decided(stall, READING, findings)


CAUSE = declared(__file__, explain, decide)
