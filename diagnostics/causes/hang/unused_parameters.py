"""Gradients never became ready on some ranks, so that a bucket was not reduced there."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._divergence import Disagreement, Reading, decided
from diagnostics.contract.findings import SEEN, Finding, Remedy
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.model import CLAUSE, shortened

_TEXTS = Texts(__file__)
_MESSAGES = {"ddp_unused", "ddp_unused_names", "ddp_unused_indices"}


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
    return decided(stall, READING, _by_messages(stall.job))


def _by_messages(job: JobState) -> list[Finding]:
    # A rank that had waited in vain goes on with gradients that no peer reduced, so what DDP says then is an effect.
    facts = [fact for fact in job.evidence.facts if fact.kind in _MESSAGES and fact.rank not in job.after_stall]
    if not facts or job.finished():
        return []
    stated = {fact.fields.get("stated", fact.rank) for fact in facts}
    ranks = tuple(sorted(rank for rank in stated if isinstance(rank, int)))
    listed = next((str(fact.fields["names"]) for fact in facts if "names" in fact.fields), "")
    endings = [job.endings[rank] for rank in ranks[:2] if rank in job.endings]
    # Ranks below the highest one are inferred, not seen.
    present = range(job.evidence.world_size) if job.evidence.world_size else {*job.survey.ranks, *job.endings}
    names, fixes = f" ({shortened(listed, CLAUSE)})" if listed else "", under_ddp("", is_dtk_run=job.evidence.is_dtk)
    return [
        _parts.confirmed(
            job,
            _TEXTS.facts(who=ranks or "a rank", names=names, messages=len(facts), fixes=fixes),
            SEEN,
            evidence=_parts.lines(facts),
            ranks=ranks,
            victims=tuple(sorted({*present} - {*ranks, UNNAMED})),
            where=tuple(at for end in endings for at in _parts.where(end.rank, own_line(end.frames), end.summary)),
        )
    ]


CAUSE = declared(__file__, explain, decide)
