"""Stages of a pipeline that disagree about the number of micro-batches of a step, or the size of messages."""

from diagnostics.analysis.pairwise import Case, Pairs, pairs
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang.all_to_all_splits import places, seen
from diagnostics.contract.findings import Finding, Group, Remedy, Text, ruled_out, undecided, worded
from diagnostics.contract.formatting import ranks_spoken

ID = "hang.pipeline_mismatch"


def _words(finding: Finding, case: Case, stages: dict[int, int]) -> Text:
    first = case.misfits[0]
    sender, receiver = (f"stage {stages[rank]} (rank {rank})" for rank in (first.sender, first.receiver))
    if case.shapes:
        seen = f"{sender} sends {first.sent:,} elements, and {receiver} expects {first.expected:,}"
        change = "give all stages micro-batches of the same size: the same micro_batch_size and sequence length"
    else:
        seen = f"{sender} sent {first.sent:,} messages and went on, and {receiver} waits for the next one"
        change = "give all stages the same number of micro-batches: drop_last, and one batch size for all ranks"
    what = "sends another size" if case.shapes else "ran another number of micro-batches"
    blamed = f"{ranks_spoken(finding.ranks)} {what} than in the step before"
    if len(finding.ranks) > 1:
        blamed = "neither side can be called wrong"
    return Text(
        summary=f"The stages of a pipeline disagree: {seen}; {blamed}.",
        measured=f"{first.sent:,} sent, {first.expected:,} expected",
        remedies=(Remedy("code", change, "each message needs its other half on the neighbouring stage"),),
    )


def decide(known: Pairs) -> list[Finding]:
    """Decide from the messages of the last step that the rings of neighbouring stages hold."""
    layout, case = known.layout, known.messages()
    if case is None:
        if layout is not None and layout.degrees["pp"] == 1:
            return [ruled_out(ID, "parallel.pp=1: there is no pipeline")]
        if layout is not None and len(known.records) > 1:
            return [ruled_out(ID, "the messages of neighbouring stages fit each other")]
        if known.records and not any(record.is_p2p for records in known.records.values() for record in records):
            return [ruled_out(ID, "no rank sent or received a message")]
        return [undecided(ID, "Which ranks are stages of a pipeline is not recorded.", _parts.RECORD)]
    assert layout is not None
    stages = {rank: layout.place(rank)["pp"] for rank in case.group}
    return [
        Finding(
            cause=ID,
            status="confirmed",
            facts=worded(_words, case=case, stages=stages),
            confidence=0.95,
            ranks=case.culprits,
            victims=case.victims,
            group=Group("pp", case.group),
            step=case.misfits[0].calls[1].step,
            where=places(case),
            evidence=seen(known, case, "elements" if case.shapes else "messages"),
        )
    ]


CAUSE = declared(__file__, pairs, decide)
