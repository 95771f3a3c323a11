"""Parts of findings about messages between two ranks: sends and receives, and the rows of an all_to_all."""

from typing import Any

from diagnostics.analysis.pairwise import Case, Pairs
from diagnostics.analysis.stall.circular import PointToPoint
from diagnostics.analysis.stall.explain import Stall
from diagnostics.causes.declared import Texts
from diagnostics.causes.hang import _parts
from diagnostics.contract.findings import CITED, PROBABLE, SEEN, EvidenceItem, Facts, Finding, Where
from diagnostics.contract.formatting import Phrase, file_name
from diagnostics.evidence.calls import Call

_TEXTS = Texts(__file__)
_SHOWN = 4  # Chosen: ranks of which a sentence shows the split sizes.


def figures(case: PointToPoint) -> dict[str, Any]:
    """Return the figures about sends and receives without counterparts."""
    links = [_TEXTS.phrase(call.p2p, rank=rank, call=call, at=_at(call)) for rank, call in case.calls[:CITED]]
    links += [_TEXTS.phrase("more", more=len(case.calls) - CITED)] if len(case.calls) > CITED else []
    (rank, call), sites = case.calls[0], [call.place for _, call in case.calls if call.site]
    out = next(iter(case.out_of_step), None)
    row = ("departs" if out.departs else "rounds") if out else "schedules" if case.scheduled else ""
    row = row or ("tags" if case.tags_differ else "one_sided" if case.in_collectives else "")
    return {
        "said": row or ("cycle" if case.confidence == SEEN else "unclear"),
        "case": case,
        "out": out,
        "chain": links,
        "places": " and ".join(dict.fromkeys(sites)) or "both calls",
        "at": _at(call).strip(" ()") or "these calls",
        "rest": [rank for rank, _ in case.in_collectives],
        "instead": case.in_collectives[0][1].cited() if case.in_collectives else "",
        "rank": rank,
        "call": call,
        "half": _TEXTS.phrase("half_send" if call.p2p == "recv" else "half_recv", rank=rank),
        "before": "".join(f" before {at.cited()}" for peer, at in case.in_collectives if peer == call.peer),
    }


def _at(call: Call) -> str:
    return f" ({file_name(call.site.file)}:{call.site.line})" if call.site else ""


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


def finding(stall: Stall, case: PointToPoint, facts: Facts) -> Finding:
    """Return the finding about a circular wait, with a cause's facts.

    The culprits are the ranks that are out of step; in a pipeline, those in other calls if they are fewer; or else all
    ranks that wait for each other, as nothing tells which one is wrong.
    """
    job, cycle, others = stall.job, case.cycle, tuple(rank for rank, _ in case.in_collectives)
    one_sided = {end for rank, call in case.calls if call.peer in others for end in (rank, call.peer)}
    met = one_sided or {rank for rank, _ in case.calls}
    few = case.scheduled and 0 < len(others) < len(case.calls)
    culprits = tuple(sorted({out.rank for out in case.out_of_step} or (others if few else met)))
    in_collectives = [(rank, call) for rank, call in case.in_collectives if rank in culprits] or case.in_collectives[:1]
    waits: list[tuple[int, Call, str | Phrase]]
    waits = [(rank, call, _parts.says("waits_in", what=call.text)) for rank, call in case.calls[:CITED]]
    instead: list[tuple[int, Call, str | Phrase]]
    instead = [(rank, call, _TEXTS.phrase("instead", call=call)) for rank, call in in_collectives]
    return _parts.confirmed(
        job,
        facts,
        PROBABLE if few and not case.out_of_step else case.confidence,
        seen={rank: _parts.says("waits_in", what=call.text) for rank, call in case.calls},
        ranks=culprits,
        victims=tuple(sorted((job.waits.reaching(cycle.ranks) | set(cycle.ranks)) - set(culprits))),
        group=_parts.group(job.survey, case.calls[0][1].key),
        where=_parts.places(waits + instead if culprits[0] == case.calls[0][0] else instead + waits),
    )
