"""Ranks that never came to init_process_group while others waited in it, by what `dtk watch` lets them tell meanwhile.

A rank that computes or reads on its way is late, not stuck, and is not blamed.
"""

from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Where
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import STALL_S, Context
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.readers.start import KIND, own_frame

CAUSE = "hang.rendezvous"
_MISSING = "dtk watch on every node with one --folder, or py-spy dump of the processes that did not come"


def find(context: Context) -> list[Finding]:
    """One finding, confirmed where those that are missing stood still; none where all came."""
    starts = {fact.rank: fact for fact in context.evidence.facts if fact.kind == KIND and fact.rank is not None}
    issued = any(record.lines or record.p2p for record in context.survey.ranks.values())
    if not starts or issued or any(end.by_itself for end in context.ends.values()):
        return []
    world = max(fact.fields["nranks"] for fact in starts.values())
    waiting = sorted(rank for rank, fact in starts.items() if fact.fields["state"] == "meets")
    missing = [rank for rank in range(world) if rank not in starts or starts[rank].fields["state"] == "started"]
    if not waiting or not missing:
        return []
    waited_s = max(_lasted_s(starts[rank], "since_s") for rank in waiting)
    stuck = tuple(rank for rank in missing if rank in starts and _lasted_s(starts[rank], "worked_s") >= STALL_S)
    verb = say.verb(waiting, "waits", "wait")
    what = f"{say.sentence(say.ranks(waiting))} {verb} in init_process_group for {waited_s:.0f} s"
    if waited_s < STALL_S or not stuck:
        come = say.verb(missing, "has", "have")
        why = _why(missing, starts)
        return [say.undecided(CAUSE, f"{what}, and {say.ranks(missing)} {come} not come: {why}.", _MISSING, waiting)]
    return [_stuck(context, what, waiting, stuck, missing, starts, waited_s)]


def _stuck(
    context: Context,
    what: str,
    waiting: list[int],
    stuck: tuple[int, ...],
    missing: list[int],
    starts: dict[int, LogFact],
    waited_s: float,
) -> Finding:
    places = [place for rank in stuck[:4] if (place := _place(starts[rank], "has not come to init_process_group"))]
    at = f" at {say.short(places[0].file)}:{places[0].line} in {places[0].function}" if places else ""
    others = [rank for rank in missing if rank not in stuck]
    summary = f"{what}; {say.ranks(stuck)} {say.verb(stuck, 'never comes', 'never come')}: it stands still{at}."
    if others:
        summary += f" {say.sentence(say.ranks(others))} did not come either: {_why(others, starts)}."
    told = [place for rank in waiting[:1] if (place := _place(starts[rank], "waits in init_process_group"))]
    change = f"{places[0].file}:{places[0].line}: " if places else ""
    return Finding(
        cause=CAUSE,
        status="confirmed",
        summary=summary,
        confidence=0.9,
        ranks=stuck,
        victims=tuple(waiting),
        where=(*places, *told),
        cost=Cost(round(waited_s, 1), "s blocked"),
        evidence=tuple(
            EvidenceItem(
                "log", starts[rank].file, f"{starts[rank].text} for {_lasted_s(starts[rank], 'since_s'):.0f} s"
            )
            for rank in (*stuck[:3], *waiting[:3])
        ),
        remedies=say.remedies(
            context.evidence,
            f"{change}let this rank come to init_process_group, or do on all ranks what it waits for after it",
            "the group is made only when every rank has come",
        ),
        measured=f"{len(waiting)} of {len(waiting) + len(missing)} ranks came and waited {waited_s:.0f} s",
    )


def _lasted_s(fact: LogFact, since: str) -> float:
    """By one clock, that of the rank."""
    return max(0.0, float(fact.fields["alive_s"] - fact.fields[since]))


def _why(ranks: list[int], starts: dict[int, LogFact]) -> str:
    unknown = [rank for rank in ranks if rank not in starts]
    if unknown:
        return f"nothing was left by {say.ranks(unknown)}"
    return "it was still at work" if len(ranks) == 1 else "they were still at work"


def _place(fact: LogFact, does: str) -> Where | None:
    own = own_frame(fact)
    return Where(fact.rank, own.file, own.line, own.function, does) if own is not None else None
