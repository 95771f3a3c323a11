"""`memory.no_reshard`: sharded units that stay gathered from forward to backward."""

from diagnostics.analysis.memory.gathers import Gather, Traffic, UnitUse
from diagnostics.analysis.memory.job import RankMemory, Situation
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Remedy
from diagnostics.detectors.memory.gathers import LEAST_SHARE, RECORD, UNITS_IN_USE
from diagnostics.detectors.memory.predict import grown
from diagnostics.detectors.memory.say import ranks, share, size

KEPT = "memory.no_reshard"


def no_reshard(situation: Situation) -> Finding:
    """Whether units stay gathered from forward to backward."""
    facts, run = situation.facts, situation.evidence.run
    declared = run.get("strategy.reshard_after_forward") if run is not None else None
    traced = [rank for rank in situation.all() if rank.trace is not None and rank.trace.units]
    if facts.strategy == "zero2":
        why = "zero2 keeps gathered parameters until backward by definition"
        return Finding(cause=KEPT, status="ruled_out", summary=f"{why}; strategy=zero3 frees them.", measured=why)
    if facts.shards == 1:
        why = f"strategy {facts.strategy} shards no parameters"
        return Finding(cause=KEPT, status="ruled_out", summary=f"Nothing to free: {why}.", measured=why)
    kept = [(rank, _kept_units(rank.trace.units)) for rank in traced if rank.trace is not None]
    guilty = [(rank, units) for rank, units in kept if units]
    if guilty:
        return _kept(situation, guilty)
    if (roots := _kept_roots(situation, traced)) is not None:
        return roots
    if not traced and (by_order := _kept_by_order(situation)) is not None:
        return by_order
    if declared is False and situation.is_dtk and facts.gather_bytes and not traced and _has_units(situation):
        return _declared(situation)
    if traced:
        again = max(unit.gathers for rank in traced if rank.trace for unit in rank.trace.units.values())
        measured = f"units are gathered up to {again} times in the window"
        summary = "Units are freed after forward and gathered again in backward."
        if all(len(rank.trace.units) <= 1 for rank in traced if rank.trace):
            summary = "There is no unit but the root, which backward needs first."
        return Finding(cause=KEPT, status="ruled_out", summary=summary, measured=measured)
    if any(rank.trace for rank in situation.all()) and not any(
        rank.unit_gathers(situation.is_sharded) for rank in situation.all()
    ):
        what = "no sharded unit in the traces"
        return Finding(cause=KEPT, status="ruled_out", summary=f"There is {what}.", measured=what)
    if declared is True:
        return Finding(cause=KEPT, status="ruled_out", summary="reshard_after_forward is on.", measured="configured")
    return Finding(cause=KEPT, status="undecided", summary="No use of sharded units was recorded.", missing=RECORD)


def _has_units(situation: Situation) -> bool:
    run = situation.evidence.run
    return run is not None and run.get("strategy.blocks_per_unit", 1) != 0


def _kept_units(units: dict[str, UnitUse]) -> dict[str, UnitUse]:
    """Units whose backward needed no gather, if they are most of what can be freed; the root never counts."""
    used = {name: unit for name, unit in units.items() if name and unit.backwards and unit.full_bytes}
    kept = {name: unit for name, unit in used.items() if unit.gathers <= unit.forwards}
    total = sum(unit.full_bytes for unit in used.values())
    return kept if len(kept) > 1 and sum(unit.full_bytes for unit in kept.values()) > total / 2 else {}


def _kept(situation: Situation, guilty: list[tuple[RankMemory, dict[str, UnitUse]]]) -> Finding:
    rank, units = max(guilty, key=lambda one: sum(unit.full_bytes for unit in one[1].values()))
    total = sum(unit.full_bytes for unit in units.values())
    largest = max(unit.full_bytes for unit in units.values())
    return _kept_finding(
        situation,
        tuple(one.rank for one, _ in guilty),
        total,
        max(0, total - UNITS_IN_USE * largest),
        f"{len(units)} units are gathered once a step and kept from forward to backward",
        EvidenceItem("trace", rank.trace_file, f"{len(units)} units without a gather in backward"),
    )


def _kept_by_order(situation: Situation) -> Finding | None:
    """Without traces: units that are gathered once for each reduction, by flight dumps and rings."""
    found: list[tuple[int, int, Gather]] = []
    for rank in situation.all():
        traffic = _traffic(rank)
        total = traffic.kept_bytes() if traffic is not None and rank.unit_gathers(situation.is_sharded) else 0
        if total > (situation.facts.gather_bytes or 0) / 2:
            found.append(
                (rank.rank, total, max(rank.unit_gathers(situation.is_sharded), key=lambda one: one.full_bytes))
            )
    if not found:
        return None
    _, total, largest = found[0]
    if not situation.is_dtk and not situation.out_of_memory and _are_alike(situation.ranks[found[0][0]]):
        return _perhaps_roots("Units are gathered as often as their gradients are reduced", total)
    return _kept_finding(
        situation,
        tuple(rank for rank, _, _ in found),
        total,
        max(0, total - UNITS_IN_USE * largest.full_bytes),
        "Units are gathered as often as their gradients are reduced: they are kept from forward to backward",
        EvidenceItem(largest.evidence, largest.file, "one gather for each reduction of the same size"),
    )


def _traffic(rank: RankMemory) -> Traffic | None:
    return next((t for t in (rank.ring, rank.flight) if t is not None and t.moves), None)


def _are_alike(rank: RankMemory) -> bool:
    """Whether no smaller or larger unit is there that could be the root around the others."""
    traffic = _traffic(rank)
    return traffic is not None and len({move.unit for move in traffic.moves}) == 1


def _kept_roots(situation: Situation, traced: list[RankMemory]) -> Finding | None:
    """Units without a whole around them, which stay gathered unless told otherwise: often meant so."""
    for rank in traced:
        whole, root = (rank.trace.whole, rank.trace.units.get("")) if rank.trace is not None else (None, None)
        if whole is None or root is None or whole.roots < 2 or root.gathers > root.forwards:
            continue
        what = f"{whole.roots} units are gathered once a step"
        if not situation.out_of_memory:
            return _perhaps_roots(what, whole.least_bytes)
        saved = max(0, whole.least_bytes - UNITS_IN_USE * root.full_bytes)
        item = EvidenceItem("trace", rank.trace_file, f"{whole.roots} root units without a gather in backward")
        what += " and kept from forward to backward, for no fully_shard is around them"
        return _kept_finding(situation, tuple(one.rank for one in traced), whole.least_bytes, saved, what, item)
    return None


def _perhaps_roots(what: str, total: int) -> Finding:
    summary = f"{what} and kept from forward to backward ({size(total)}), as units do by default that no "
    summary += "fully_shard on the whole model is around: right where memory suffices."
    missing = "whether memory is short: the out-of-memory text, or torch.cuda.memory._dump_snapshot() of a GPU"
    return Finding(cause=KEPT, status="undecided", summary=summary, missing=missing)


def _declared(situation: Situation) -> Finding:
    whole, block = situation.facts.gather_bytes or 0, situation.facts.block_bytes or 0
    return _kept_finding(
        situation,
        tuple(range(situation.facts.world_size or 0)),
        whole,
        max(0, whole - UNITS_IN_USE * block),
        "The strategy keeps gathered parameters from forward to backward (reshard_after_forward=false)",
        EvidenceItem("config", "config.yaml", "strategy.reshard_after_forward: false"),
    )


def _kept_finding(
    situation: Situation, seen: tuple[int, ...], total: int, saved: int, what: str, item: EvidenceItem
) -> Finding:
    peak = situation.peak()
    if saved <= LEAST_SHARE * (peak or situation.facts.parameter_bytes or 0):
        measured = f"{size(saved)} of {size(peak or situation.facts.parameter_bytes or 0)}"
        return Finding(cause=KEPT, status="ruled_out", summary=f"{what}, which costs little.", measured=measured)
    future = grown(situation, fixed_bytes=saved)
    blamed = situation.ranks_of(seen, situation.facts.world_size or 0)
    saves = size(saved) + (f" of {size(peak)}" if peak else "")
    tail = f"; {future.text()}" if future else ""
    if situation.is_dtk:
        remedy = Remedy(
            "override", "strategy.reshard_after_forward=true", "each unit is freed after its forward", saves
        )
    else:
        change = "pass reshard_after_forward=True to fully_shard (False at most for the last block)"
        remedy = Remedy("code", change, "each unit is freed after its forward and gathered again in backward", saves)
    return Finding(
        cause=KEPT,
        status="confirmed",
        summary=f"{what}: {size(total)}{share(total, peak)} on {ranks(blamed)}{tail}.",
        confidence=0.95 if situation.is_dtk or situation.out_of_memory else 0.75,
        ranks=blamed,
        cost=Cost(saved, "bytes"),
        evidence=(item, *situation.peak_items()),
        remedies=(remedy,),
        measured=f"{size(total)} kept over the step",
    )
