"""Ranks use two or more process groups in different orders, so that each waits for the other."""

from diagnostics.analysis.stall.circular import GroupOrder
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._proviso import assuming
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.findings import Finding, Remedy, Text, Where, worded
from diagnostics.contract.formatting import ranks_spoken, sentence, verb

ID = "hang.group_order"
_CONFIDENCE = 0.9
"""The cycle is proven; which order is the wrong one is a vote."""


def _words(finding: Finding, case: GroupOrder) -> Text:
    links = "; ".join(
        f"{ranks_spoken(side.ranks)} {verb(side.ranks, 'waits', 'wait')} for {ranks_spoken(side.waited_for)} in "
        f"{side.call.cited()} of group {side.operation.key.label}"
        for side in case.sides
    )
    judged = "Neither order is the wrong one by itself."
    if len(case.culprits) < len(case.cycle.ranks):
        judged = f"{sentence(ranks_spoken(case.culprits))} used another order than the rest."
    places = " and ".join(dict.fromkeys(f"{place.file}:{place.line}" for place in finding.where)) or "both calls"
    return Text(
        summary=f"A cycle of waits across groups: {links}. {judged}",
        measured=f"cycle of {len(case.cycle.ranks)} ranks over {len(case.cycle.operations)} operations",
        remedies=(
            Remedy(
                "code",
                f"use the groups in the same order on every rank: {places}",
                "each side waits for the other before it reaches the collective that the other waits in",
            ),
        ),
    )


def decide(stall: Stall) -> list[Finding]:
    """Decide from the cycles of the wait-for graph that hold collectives of more than one group."""
    findings = [assuming(stall.job, _finding(stall, wait)) for wait in stall.circular if isinstance(wait, GroupOrder)]
    return findings or [unconfirmed(stall, ID)]


def _finding(stall: Stall, case: GroupOrder) -> Finding:
    job, cycle = stall.job, case.cycle
    where: list[Where] = []
    details = {}
    for side in case.sides:
        does = f"waits for {ranks_spoken(side.waited_for)} in {side.call.text} of group {side.operation.key.label}"
        speaker = next((rank for rank in side.ranks if rank in case.culprits), side.ranks[0])
        where += _parts.where(speaker, side.call, does)
        details[side.ranks[0]] = does
    order = {rank: place for place, rank in enumerate(case.culprits)}
    where.sort(key=lambda place: order.get(place.rank or 0, len(order)))
    victims = tuple(sorted((job.waits.reaching(cycle.ranks) | set(cycle.ranks)) - set(case.culprits)))
    facts, first = worded(_words, case=case), min(cycle.operations)
    ranks, places = case.culprits, tuple(where)
    return _parts.confirmed(
        job, ID, facts, _CONFIDENCE, at=first, seen=details, ranks=ranks, victims=victims, where=places
    )


CAUSE = declared(__file__, explain, decide)
