"""The start-up never completed: ranks wait for others that never arrived, or the rendezvous timed out."""

from collections.abc import Iterable
from typing import Any

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.startup import Meeting, Startup, at_start, lasted_s, not_yet_met
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.contract import findings as level
from diagnostics.contract.files import patterns_beside
from diagnostics.contract.findings import CITED, Cost, EvidenceItem, Finding, confirmed
from diagnostics.contract.formatting import counted
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.model import LogFact, shortened

_TEXTS, _WHY = Texts(__file__), patterns_beside(__file__, "patterns")
_MESH = "connectFullMesh"  # gloo, since torch 2.2.
_SLOW_S = 60.0  # Chosen: as long, a slow server of names or addresses may hold up all ranks, but hardly longer.


def _why(case: Startup, ranks: tuple[int, ...]) -> str:
    return "nothing_left" if any(rank not in case.starts for rank in ranks) else "at_work"


def decide(stall: Stall) -> Finding:
    """Decide from what `dtk watch` records during start-up, or messages of the store and the rendezvous, or stacks."""
    case, job = stall.startup, stall.job
    if isinstance(case, Startup):
        return _finding(case)
    if isinstance(case, Meeting):
        return _met(stall, case)
    if case is None and (waits := not_yet_met(job.evidence)):
        ranks = tuple(sorted({fact.rank for fact in waits if fact.rank is not None}))
        row = "not_yet" if "joined" in waits[-1].fields else "no_store"
        facts = _TEXTS.facts(row, ranks=ranks, last=waits[-1].fields)
        return Finding(status="undecided", facts=facts, confidence=0.0, victims=ranks, evidence=(*_parts.lines(waits),))
    if case is None:
        return _parts.unconfirmed(stall, _TEXTS.phrase("launcher_logs"))
    victims = tuple(sorted({fact.rank for fact in case.facts if fact.rank is not None}))
    kinds = [fact.kind for fact in case.facts]
    rows = (kind for kind in ("nccl_rank_count", "port_in_use", "port_refused", "mesh_failed") if kind in kinds)
    counts = [fact.fields for fact in case.facts if fact.kind == "store_barrier"]
    row = "too_many" if any(fields["joined"] > fields["size"] for fields in counts) else next(rows, "default")
    closed = all(fact.fields.get("type") == "RendezvousClosedError" for fact in case.facts)
    alone = row == "mesh_failed" and any(_WHY["no_peer"].search(str(fact.fields.get("why"))) for fact in case.facts)
    message, count = shortened(case.facts[0].text.strip().rstrip(".")), counted(len(kinds), "message")
    row = "closed" if closed else "mesh_alone" if alone else row
    absent = {int(key[1]) for fact in case.facts if (key := _WHY["no_address"].search(fact.text))}
    said = [row, "no_address"] if row == "default" and absent else row
    facts = _TEXTS.facts(said, message=message, count=count, absent=sorted(absent))
    # A single connection may also be one of a group that is made later; a mesh is not complete without it.
    of_one = level.OPEN if any(_MESH in fact.text for fact in case.facts) else level.SUSPECTED
    # torch warns of each address on which it cannot listen, and fails only if none of them is left.
    warned = all("warned" in fact.fields for fact in case.facts)
    confidence = level.SUSPECTED if warned else level.OPEN if closed else of_one if alone else level.LIKELY
    basis: level.Basis = "messages" if closed else "records"
    return _parts.confirmed(job, facts, confidence, evidence=_parts.lines(case.facts), victims=victims, basis=basis)


def _met(stall: Stall, case: Meeting) -> Finding:
    """Return the finding about ranks whose stacks are in the creation of a group. Which ranks are missing is known if
    the world size is; that no rank is past it, if all left a stack.
    """
    ranks, world = tuple(case.sites), stall.job.evidence.world_size
    row, confidence = ("left_nothing", level.OPEN) if case.missing else ("all_there", level.PLAUSIBLE)
    row, confidence = (row, confidence) if world else ("of_how_many", level.SUSPECTED)
    facts = _TEXTS.facts(["meeting", row], ranks=ranks, op=case.op, missing=case.missing, world=world)
    places = [(rank, _TEXTS.phrase("meets_in", op=case.op)) for rank in ranks[:CITED]]
    evidence = [
        EvidenceItem("stacks", case.files[rank], _parts.says("of_rank", rank=rank, what=at)) for rank, at in places
    ]
    where = _parts.places((rank, case.sites[rank], at) for rank, at in places)
    return _parts.confirmed(stall.job, facts, confidence, victims=ranks, where=where, evidence=evidence, basis="places")


def _seen(starts: Iterable[LogFact]) -> tuple[EvidenceItem, ...]:
    lasted = [(fact, {"rank": fact.rank, "lasted_s": lasted_s(fact, "since_s")}) for fact in [*starts][:CITED]]
    return tuple(EvidenceItem("log", f.file, _TEXTS.phrase(f.fields["state"], **figures)) for f, figures in lasted)


def _nobody(case: Startup) -> Finding:
    """Return the finding about ranks that all make no progress, before init_process_group or within it."""
    ranks, row = case.missing or case.waiting, "nobody" if case.missing else "everybody"
    activities = {rank: at_start(fact) for rank, fact in case.starts.items()}
    first = activities[ranks[0]]
    still_s = min(lasted_s(fact, "worked_s") for fact in case.starts.values())
    return confirmed(
        facts=_TEXTS.facts(row, ranks=ranks, still_s=still_s, does=_parts.doing(first), fix=_parts.fix(first)),
        confidence=level.CERTAIN if still_s >= _SLOW_S else level.LIKELY,
        victims=ranks,
        where=_parts.places(
            (rank, activities[rank].frame, _parts.says("is_there", what=activities[rank].words))
            for rank in ranks[:CITED]
        ),
        cost=Cost(round(still_s, 1), "s blocked"),
        evidence=_seen(case.starts.values()),
    )


def _finding(case: Startup) -> Finding:
    if not (case.waiting and case.missing):
        return _nobody(case)
    others = tuple(rank for rank in case.missing if rank not in case.stuck)
    unknown = [rank for rank in others if rank not in case.starts]
    figures: dict[str, Any] = {"case": case, "others": others, "unknown": unknown}
    if not case.stuck:
        facts = _TEXTS.facts(("absent", _why(case, others)), **figures)
        return Finding(status="undecided", facts=facts, confidence=0.0, victims=case.waiting)
    first = own_line(case.starts[case.stuck[0]].fields["frames"])
    count, place = len(case.waiting) + len(case.missing), _TEXTS.phrase("place", frame=first) if first else ""
    figures |= {"count": count, "place": place, "at": f"{first.file}:{first.line}: " if first else ""}
    facts = _TEXTS.facts(("stuck", *(("nor", _why(case, others)) if others else ())), **figures)
    return confirmed(
        facts=facts,
        confidence=level.CERTAIN,
        ranks=case.stuck,
        victims=case.waiting,
        where=_parts.places(
            (rank, own_line(case.starts[rank].fields["frames"]), _TEXTS.phrase(row))
            for rank, row in [*dict.fromkeys(case.stuck[:CITED], "stands").items(), (case.waiting[0], "waits")]
        ),
        cost=Cost(round(case.waited_s, 1), "s blocked"),
        evidence=_seen(case.starts[rank] for rank in (*case.waiting[:1], *case.stuck)),
    )


CAUSE = declared(__file__, explain, decide)
