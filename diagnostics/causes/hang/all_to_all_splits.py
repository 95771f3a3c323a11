"""An all_to_all in which a rank expects a different number of rows from a peer than the peer sends."""

from diagnostics.analysis.pairwise import Pairs, first_misfit, pairs
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._messages import places, seen
from diagnostics.contract.findings import STATED, Finding, Group, confirmed
from diagnostics.contract.formatting import file_name

_TEXTS = Texts(__file__)


def decide(calls: Pairs) -> Finding:
    """Decide from the split sizes of all recorded all_to_all calls."""
    case = first_misfit(calls)
    if case is None:
        checked = sum(bool(record.splits) for records in calls.records.values() for record in records)
        if len(calls.records) > 1:
            return _TEXTS.ruled_out(count=checked)
        return _TEXTS.undecided(missing=_parts.recording(calls.evidence))
    first, call = case.misfits[0], case.misfits[0].calls[1]
    row = "tie" if {first.sender, first.receiver} <= set(case.culprits) else "default"
    at = f" ({file_name(call.file)}:{call.line})" if call.file else ""
    return confirmed(
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


CAUSE = declared(__file__, pairs, decide)
