"""Gathers of parameters: `memory.full_gather` (one call brings almost all) and `memory.no_reshard` (kept too long)."""

from diagnostics.detectors.memory.collectives import Gather, UnitUse
from diagnostics.detectors.memory.predict import grown
from diagnostics.detectors.memory.say import place, ranks, share, size
from diagnostics.detectors.memory.situation import RankMemory, Situation
from diagnostics.findings import Cost, EvidenceItem, Finding, Remedy, Where

FULL = "memory.full_gather"
KEPT = "memory.no_reshard"
ALMOST_ALL = 0.9
"""Of all parameters: from here on one gather is the whole model (a smaller root unit is not)."""
LEAST_SHARE = 0.02
"""Of the peak: below this nothing is reported."""
_RECORD = "record=full (a profiler window with allocations); for other jobs profile_memory=True, record_shapes=True"
_UNITS_IN_USE = 2
"""Units gathered at once with prefetch: the one in use and the next."""


def full_gather(situation: Situation) -> Finding:
    """Whether one call gathers (almost) all parameters."""
    whole = situation.facts.gather_bytes
    best: tuple[Gather, list[int]] | None = None
    for rank in situation.all():
        for one in _parameter_gathers(situation, rank):
            if whole and one.full_bytes < ALMOST_ALL * whole:
                continue
            if best is not None and best[0].full_bytes == one.full_bytes:
                best[1].append(rank.rank)
                if best[0].site is None and one.site is not None:
                    best = one, best[1]
            elif best is None or one.full_bytes > best[0].full_bytes:
                best = one, [rank.rank]
    if whole and best is not None:
        return _full(situation, best[0], best[1], whole)
    return _not_full(situation, whole)


def _parameter_gathers(situation: Situation, rank: RankMemory) -> list[Gather]:
    """Units' gathers, and under sharding those calls of the user's that are as large as a whole model."""
    found = rank.unit_gathers(situation.is_sharded)
    whole = situation.facts.gather_bytes
    if whole and situation.is_sharded:
        users = [one for one in rank.user_gathers() if one.kind == "user" and one.full_bytes <= 1.3 * whole]
        with_line = [one for one in users if one.site is not None]
        found = [*found, *(with_line or users)]
    return found


def _full(situation: Situation, gather: Gather, seen: list[int], whole: int) -> Finding:
    blamed = situation.ranks_of(seen, gather.ranks)
    part = gather.full_bytes / whole
    saved = _saved_by_units(situation, gather, whole)
    future = grown(situation, fixed_bytes=saved)
    peak = situation.peak()
    if gather.kind == "user":
        at = f" at {place(gather.site.file, gather.site.line)}" if gather.site else ""
        what = f"The code{at} gathers {part:.0%} of all parameters in one all_gather of {size(gather.full_bytes)}"
    else:
        what = f"One sharded unit gathers {part:.0%} of all parameters in one all_gather of {size(gather.full_bytes)}"
        what += ": the model is wrapped only as a whole"
    tail = f"; {future.text()}" if future else ""
    summary = f"{what}, so every rank holds the whole model{share(gather.full_bytes, peak)}{tail}."
    return Finding(
        cause=FULL,
        status="confirmed",
        summary=summary.replace("%", " %").replace("  %", " %"),
        confidence=0.97 if situation.facts.source != "the sum of its gathered units" else 0.9,
        ranks=blamed,
        step=gather.step,
        where=_where(situation, gather, blamed),
        cost=Cost(saved, "bytes"),
        evidence=(
            EvidenceItem(gather.evidence, gather.file, f"all_gather of {size(gather.full_bytes)}"),
            *situation.peak_items(),
        ),
        remedies=(_full_remedy(situation, gather, saved, peak),),
        measured=f"largest gather {size(gather.full_bytes)} = {part:.0%} of the parameters".replace("%", " %"),
    )


def _where(situation: Situation, gather: Gather, blamed: tuple[int, ...]) -> tuple[Where, ...]:
    if gather.site is None:
        return ()
    first = blamed[0] if blamed else None
    does = f"{gather.op} of {size(gather.full_bytes)}"
    return (Where(first, gather.site.file, gather.site.line, gather.site.function, does),)


def _saved_by_units(situation: Situation, gather: Gather, whole: int) -> int:
    """Bytes that wrapping each block saves: all but the root unit and two blocks; an extra gather saves itself."""
    if gather.kind == "user":
        return gather.full_bytes
    run, block = situation.evidence.run, situation.facts.block_bytes
    layers = run.get("model.layers") if run is not None else None
    if block and isinstance(layers, int):
        return max(0, (layers - _UNITS_IN_USE) * block)
    return gather.full_bytes


def _full_remedy(situation: Situation, gather: Gather, saved: int, peak: int | None) -> Remedy:
    saves = f"{size(saved)}" + (f" of {size(peak)}" if peak else "")
    if gather.kind == "user":
        at = f" at {place(gather.site.file, gather.site.line)}" if gather.site else ""
        change = f"do not gather all parameters{at}: reduce each rank's shard (a norm, a hash) and combine the results"
        return Remedy("code", change, "a shard is 1/N of the parameters, the gathered copy all of them", saves)
    if situation.is_dtk:
        return Remedy("override", "strategy.blocks_per_unit=1", "each block is gathered when it is used", saves)
    change = "call fully_shard on each block (and on embeddings and head) before the whole model"
    return Remedy("code", change, "each block is gathered when it is used and freed after it", saves)


def _not_full(situation: Situation, whole: int | None) -> Finding:
    gathers = [one for rank in situation.all() for one in _parameter_gathers(situation, rank)]
    largest = max(gathers, key=lambda one: one.full_bytes, default=None)
    if largest is not None and whole:
        part = largest.full_bytes / whole
        measured = f"largest gather {size(largest.full_bytes)} = {part:.0%} of the parameters".replace("%", " %")
        hint = ""
        if part > 0.3 and not largest.unit:
            hint = " The root unit (embeddings, head) is large: units of their own for these would make it smaller."
        return Finding(
            cause=FULL, status="ruled_out", summary=f"No gather brings the whole model.{hint}", measured=measured
        )
    if situation.facts.shards == 1:
        why = f"strategy {situation.facts.strategy} shards no parameters"
        return Finding(cause=FULL, status="ruled_out", summary=f"Nothing to gather: {why}.", measured=why)
    if gathers or _any_gather(situation):
        summary = "There are gathers, but how large the whole model is is not known."
        return Finding(cause=FULL, status="undecided", summary=summary, missing="the size of the model: " + _RECORD)
    if any(rank.trace or rank.flight for rank in situation.all()):
        what = "no gather in what was recorded"
        return Finding(cause=FULL, status="ruled_out", summary=f"There is {what}.", measured=what)
    return Finding(cause=FULL, status="undecided", summary="No collectives were recorded.", missing=_RECORD)


def _any_gather(situation: Situation) -> bool:
    return any(t.gathers for r in situation.all() for t in (r.trace, r.flight, r.ring) if t)


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
    return Finding(cause=KEPT, status="undecided", summary="No use of sharded units was recorded.", missing=_RECORD)


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
        max(0, total - _UNITS_IN_USE * largest),
        f"{len(units)} units are gathered once a step and kept from forward to backward",
        EvidenceItem("trace", rank.trace_file, f"{len(units)} units without a gather in backward"),
    )


def _kept_by_order(situation: Situation) -> Finding | None:
    """Without traces: units that are gathered once for each reduction, by flight dumps and rings."""
    found: list[tuple[int, int, Gather]] = []
    for rank in situation.all():
        traffic = next((t for t in (rank.ring, rank.flight) if t is not None and t.order), None)
        total = traffic.kept_bytes() if traffic is not None and rank.unit_gathers(situation.is_sharded) else 0
        if total > (situation.facts.gather_bytes or 0) / 2:
            found.append(
                (rank.rank, total, max(rank.unit_gathers(situation.is_sharded), key=lambda one: one.full_bytes))
            )
    if not found:
        return None
    _, total, largest = found[0]
    return _kept_finding(
        situation,
        tuple(rank for rank, _, _ in found),
        total,
        max(0, total - _UNITS_IN_USE * largest.full_bytes),
        "Units are gathered as often as their gradients are reduced: they are kept from forward to backward",
        EvidenceItem(largest.evidence, largest.file, "one gather for each reduction of the same size"),
    )


def _declared(situation: Situation) -> Finding:
    whole, block = situation.facts.gather_bytes or 0, situation.facts.block_bytes or 0
    return _kept_finding(
        situation,
        tuple(range(situation.facts.world_size or 0)),
        whole,
        max(0, whole - _UNITS_IN_USE * block),
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
