"""Ranks issued the same operation with a different shape, dtype, root, ReduceOp or split sizes."""

from diagnostics.analysis.divergence.identity import differing_parts
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._divergence import DETAIL, Disagreement, Reading, decided
from diagnostics.contract.findings import CITED, OPEN, SIZES_PRINTED, Finding, Remedy
from diagnostics.contract.formatting import UNNAMED, counted, file_name
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.endings import in_object_call
from diagnostics.evidence.model import shortened

_TEXTS = Texts(__file__)
_MISSING = _TEXTS.phrase("arguments")


def _summary(facts: Disagreement) -> str:
    minority, majority = facts.divergence.minority, facts.divergence.majority
    if facts.divergence.payload is not None:
        sent, expected = facts.divergence.payload
        return facts.filled(_TEXTS, "sizes", sent=sent, expected=expected, **_transfer(facts))
    if facts.completed:
        hang = tuple(rank for rank in facts.divergence.vote.present if rank not in facts.completed)
        end = "source" if minority.wire.op in {"broadcast", "scatter"} else "destination"
        row = "root" if facts.divergence.tie else "other_root"
        common = min(facts.divergence.vote.present)
        return facts.filled(_TEXTS, row, hang=hang, completed=facts.completed, end=end, common=common)
    parts = differing_parts(minority.wire, majority.wire) if minority.text == majority.text else ()
    return facts.filled(_TEXTS, "hidden" if parts else "summary", parts=parts)


def _remedies(facts: Disagreement) -> tuple[Remedy, ...]:
    row = "same_root" if facts.completed else "same_arguments" if facts.divergence.payload is None else "same_size"
    places = {"minority_call": facts.divergence.minority.place, "majority_call": facts.divergence.majority.place}
    return (_TEXTS.remedy(row, **places, **_transfer(facts)),)


def _transfer(facts: Disagreement) -> dict[str, object]:
    return {"sender": facts.divergence.minority_rank, "receiver": facts.divergence.majority_rank}


READING = Reading(_TEXTS, ("other_arguments",), _remedies, _summary)


def decide(stall: Stall) -> list[Finding]:
    """Decide from the first call in which the ranks differ, printed sizes, watchdogs, and contradicting roots."""
    job, findings = stall.job, list[Finding]()
    ends = [end for end in job.endings.values() if end.kind == "mismatch" and in_object_call(end.frames)]
    is_one_job, missing = not (job.evidence.doubt or job.finished()), DETAIL if job.survey.ranks else _parts.RECORD
    if is_one_job and (lines := job.size_mismatches()):
        if not any(divergence.lines[:1] == tuple(lines[:1]) for divergence in stall.inferred):
            # No record shows the calls that met. Those named met the wrong size, and did not pass it.
            ranks = tuple(sorted({fact.rank for fact in lines if fact.rank is not None}))
            count, text = counted(len(lines), "message"), shortened(lines[0].text.strip(), 200)
            facts, cited = _TEXTS.facts(printed=text, count=count, missing=missing), _parts.lines(lines)
            findings += [_parts.confirmed(job, facts, SIZES_PRINTED, evidence=cited, victims=ranks, basis="messages")]
    elif is_one_job and ends:
        first, own = ends[0], own_line(ends[0].frames)
        at, op = own and f"{file_name(own.file)}:{own.line}", first.frames[0].function
        facts = _TEXTS.facts("object", end=first, rank=(first.rank,), op=op, at=at, missing=missing)
        ranks, cited = (
            tuple(sorted(end.rank for end in ends if end.rank != UNNAMED)),
            tuple(end.evidence for end in ends[:CITED]),
        )
        where = _parts.where(first.rank if ranks else None, own)
        # What met the size of an object may also be another collective, or that of an earlier call.
        findings.append(
            _parts.confirmed(job, facts, OPEN, evidence=cited, victims=ranks, where=where, basis="messages")
        )
    none = None if stall.divergences or job.behind() else _TEXTS.ruled_out(count=job.survey.positions)
    recording = _parts.recording(job.evidence, _MISSING)
    return decided(stall, READING, findings, recording, otherwise=lambda _, waits: None if waits else none)


CAUSE = declared(__file__, explain, decide)
