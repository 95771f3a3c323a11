"""Ranks use two or more process groups in different orders, so that each waits for the other."""

from diagnostics.analysis.stall.circular import GroupOrder
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.stack_evidence import KEY as STACKS
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.contract.findings import CERTAIN, LIKELY, OPEN, SUSPECTED, Finding

_TEXTS = Texts(__file__)


def decide(stall: Stall) -> list[Finding]:
    """Decide from cycles of the wait-for graph with collectives of more than one group."""
    findings = [_finding(stall, wait) for wait in stall.circular if isinstance(wait, GroupOrder)]
    return [_parts.assuming(stall.job, finding) for finding in findings] or [_parts.unconfirmed(stall)]


def _finding(stall: Stall, case: GroupOrder) -> Finding:
    job, cycle = stall.job, case.cycle
    details = {side.ranks[0]: _TEXTS.phrase("does", side=side) for side in case.sides}
    order = list(dict.fromkeys((*case.culprits, *cycle.ranks)))
    rows = [(min(side.ranks, key=order.index), side.call, details[side.ranks[0]]) for side in case.sides]
    where = _parts.places(row for rank in order for row in rows if row[0] == rank)
    victims = tuple(sorted((job.waits.reaching(cycle.ranks) | set(cycle.ranks)) - set(case.culprits)))
    # The cycle is proven, but which order is wrong is decided by a vote. A rank that made only one of the calls may as
    # well leave the other one out.
    order_of = "other_order" if len(case.culprits) < len(cycle.ranks) else "either_order"
    facts = _TEXTS.facts(
        ("cycle", order_of) if case.proven else ("cycle", order_of, "unproven"),
        cycle=cycle,
        links=[_TEXTS.phrase("link", side=side) for side in case.sides],
        places=" and ".join(dict.fromkeys(f"{place.file}:{place.line}" for place in where)) or "both calls",
    )
    ranks, at = case.culprits, min(cycle.operations)
    sure = LIKELY if at.key.recorder == STACKS.recorder else CERTAIN
    sure = sure if case.proven else OPEN if where else SUSPECTED
    return _parts.confirmed(job, facts, sure, at=at, seen=details, ranks=ranks, victims=victims, where=where)


CAUSE = declared(__file__, explain, decide)
