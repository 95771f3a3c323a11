"""An all_to_all in which a rank expects a different number of rows from a peer than the peer sends."""

from diagnostics.analysis.pairwise import Case, Pairs, pairs
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.contract.findings import STATED, EvidenceItem, Finding, Group, Where
from diagnostics.contract.formatting import file_name

_SHOWN = 4  # Chosen: ranks of which a sentence shows the split sizes.
_TEXTS = Texts(__file__)


def decide(calls: Pairs) -> Finding:
    """Decide from the split sizes of all recorded all_to_all calls."""
    case = calls.splits()
    if case is None:
        checked = sum(bool(record.splits) for records in calls.records.values() for record in records)
        if len(calls.records) > 1:
            return _TEXTS.ruled_out(count=checked)
        return _TEXTS.undecided(missing=_parts.recording(calls.evidence))
    first, call = case.misfits[0], case.misfits[0].calls[1]
    row = "tie" if {first.sender, first.receiver} <= set(case.culprits) else "default"
    at = f" ({file_name(call.file)}:{call.line})" if call.file else ""
    return Finding(
        status="confirmed",
        facts=_TEXTS.facts(row, case=case, first=first, call=call, at=at),
        confidence=STATED,
        ranks=case.culprits,
        victims=case.victims,
        group=Group(call.group.name, call.group.ranks, call.group.desc),
        position=call.seq,
        step=call.step,
        where=places(case),
        evidence=seen(calls, case, "rows"),
    )


def places(case: Case) -> tuple[Where, ...]:
    """Return the source lines of both sides of the mismatches, the culprits first."""
    calls = {rank: m.calls[i] for m in case.misfits for i, rank in enumerate((m.sender, m.receiver))}
    order = sorted(calls, key=lambda rank: (rank not in case.culprits, rank))[:_SHOWN]
    named = [(rank, calls[rank]) for rank in order if calls[rank].file]
    return tuple(Where(rank, call.file, call.line, call.function, call.op) for rank, call in named)


def seen(calls: Pairs, case: Case, what: str) -> tuple[EvidenceItem, ...]:
    """Return the rings that show the mismatches; `what` names the unit that they count."""
    return tuple(
        EvidenceItem("flight", calls.files[m.receiver], _TEXTS.phrase("seen", misfit=m, what=what))
        for m in case.misfits[:_SHOWN]
    )


CAUSE = declared(__file__, pairs, decide)
