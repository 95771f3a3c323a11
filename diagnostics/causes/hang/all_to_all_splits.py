"""An all_to_all in which a rank expects a different number of rows from a peer than the peer sends."""

import json
from collections import Counter

from diagnostics.analysis.pairwise import Case, Pairs, misfits, pairs
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.contract.findings import STATED, EvidenceItem, Finding, Group, Where, confirmed
from diagnostics.contract.formatting import file_name
from diagnostics.evidence.ring.format import RingRecord

_SHOWN = 4  # Chosen: ranks of which a sentence shows the split sizes.
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


def first_misfit(calls: Pairs) -> Case | None:
    """Return the first all_to_all whose splits do not match; None if there is none."""
    exchanges: dict[tuple[str, int], dict[int, RingRecord]] = {}
    for rank, records in calls.records.items():
        for record in records:
            if record.splits and rank in record.group.ranks:
                exchanges.setdefault((record.group.key, record.seq), {})[rank] = record
    for by_rank in sorted(exchanges.values(), key=lambda made: min(call.time_s for call in made.values())):
        members = next(iter(by_rank.values())).group.ranks
        tables = {rank: (*table, call) for rank, call in by_rank.items() if (table := _splits(call, len(members)))}
        if misfitting := tuple(misfits(tables, members)):
            counts = Counter(rank for m in misfitting for rank in {m.sender, m.receiver}).most_common()
            most = {rank for rank, count in counts if count == counts[0][1]}
            culprits = most if 2 * len(most) < len(members) else {rank for rank, _ in counts}
            return Case(misfitting, tuple(sorted(culprits)), members)
    return None


def _splits(call: RingRecord, ranks: int) -> tuple[list[int], list[int]] | None:
    """Return (rows sent to each rank, rows expected from each rank); None if they were not recorded."""
    try:
        sides, sizes = json.loads(call.splits), [json.loads(call.input_sizes), json.loads(call.output_sizes)]
        tables = [side or [size[0][0] // ranks] * ranks for side, size in zip(sides, sizes, strict=True)]
    except (ValueError, TypeError, IndexError, RecursionError):
        return None
    whole = all(len(table) == ranks and all(isinstance(rows, int) for rows in table) for table in tables)
    return (tables[0], tables[1]) if whole and len(tables) == 2 else None


CAUSE = declared(__file__, pairs, decide)
