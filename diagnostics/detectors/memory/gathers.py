"""`memory.full_gather`: one call brings (almost) all parameters. How long gathered units stay: `reshard`."""

from diagnostics.analysis.memory.gathers import Gather
from diagnostics.analysis.memory.job import RankMemory, Situation
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Remedy, Where
from diagnostics.detectors.memory.predict import grown
from diagnostics.detectors.memory.say import share, size, spot, where

FULL = "memory.full_gather"
ALMOST_ALL = 0.9
"""Of all parameters: from here on one gather is the whole model (a smaller root unit is not)."""
LEAST_SHARE = 0.02
"""Of the peak: below this nothing is reported."""
LEAST_UNWEIGHED_BYTES = 1 << 20
"""Where the peak is not known."""
RECORD = "record=full (a profiler window with allocations); for other jobs profile_memory=True, record_shapes=True"
UNITS_IN_USE = 2
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
        little = _little(situation, best[0])
        return little if little is not None else _full(situation, best[0], best[1], whole)
    return _not_full(situation, whole)


def _little(situation: Situation, gather: Gather) -> Finding | None:
    """Ruled out where units would save next to nothing; None where they would save something."""
    peak = situation.peak()
    if gather.full_bytes >= (LEAST_SHARE * peak if peak else LEAST_UNWEIGHED_BYTES):
        return None
    measured = f"largest gather {size(gather.full_bytes)}" + (f" of a peak of {size(peak)}" if peak else "")
    return Finding(cause=FULL, status="ruled_out", summary="All parameters together are small.", measured=measured)


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
    part, of_all = gather.full_bytes / whole, "all sharded parameters" if _by_units(situation) else "all parameters"
    saved = _saved_by_units(situation, gather, whole)
    future = grown(situation, fixed_bytes=saved)
    peak = situation.peak()
    if gather.kind == "user":
        at = spot(gather.site, gather.at_head) if gather.site else ""
        what = f"The code{at} gathers {part:.0%} of {of_all} in one all_gather of {size(gather.full_bytes)}"
    else:
        what = f"One sharded unit gathers {part:.0%} of {of_all} in one all_gather of {size(gather.full_bytes)}"
        what += ": the model is wrapped only as a whole"
    tail = f"; {future.text()}" if future else ""
    summary = f"{what}, so every rank holds the whole model{share(gather.full_bytes, peak)}{tail}."
    return Finding(
        cause=FULL,
        status="confirmed",
        summary=summary.replace("%", " %").replace("  %", " %"),
        confidence=0.9 if _by_units(situation) else 0.97,
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


def _by_units(situation: Situation) -> bool:
    """Whether nothing but the units tells the size of the model."""
    return situation.facts.source == "the sum of its gathered units"


def _where(situation: Situation, gather: Gather, blamed: tuple[int, ...]) -> tuple[Where, ...]:
    if gather.site is None:
        return ()
    first = blamed[0] if blamed else None
    does = f"{gather.op} of {size(gather.full_bytes)}"
    return where(gather.site, gather.at_head, first, does)


def _saved_by_units(situation: Situation, gather: Gather, whole: int) -> int:
    """Bytes that wrapping each block saves: all but the root unit and two blocks; an extra gather saves itself."""
    if gather.kind == "user":
        return gather.full_bytes
    run, block = situation.evidence.run, situation.facts.block_bytes
    layers = run.get("model.layers") if run is not None else None
    if block and isinstance(layers, int):
        return max(0, (layers - UNITS_IN_USE) * block)
    return gather.full_bytes


def _full_remedy(situation: Situation, gather: Gather, saved: int, peak: int | None) -> Remedy:
    saves = f"{size(saved)}" + (f" of {size(peak)}" if peak else "")
    if gather.kind == "user":
        at = spot(gather.site, gather.at_head) if gather.site else ""
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
    if largest is not None and largest.full_bytes < ALMOST_ALL * situation.least_bytes():
        measured = f"largest gather {size(largest.full_bytes)}, all units at least {size(situation.least_bytes())}"
        return Finding(cause=FULL, status="ruled_out", summary="No gather brings the whole model.", measured=measured)
    if gathers or _any_gather(situation):
        summary = "There are gathers, but how large the whole model is is not known."
        if largest is not None and largest.kind == "unit":
            summary = f"Gathers of {size(largest.full_bytes)} are of one unit that is used several times in a step, "
            summary += "or of several units of equal size: the recording does not tell which."
        return Finding(cause=FULL, status="undecided", summary=summary, missing="the size of the model: " + RECORD)
    if any(rank.trace or rank.flight for rank in situation.all()):
        what = "no gather in what was recorded"
        return Finding(cause=FULL, status="ruled_out", summary=f"There is {what}.", measured=what)
    return Finding(cause=FULL, status="undecided", summary="No collectives were recorded.", missing=RECORD)


def _any_gather(situation: Situation) -> bool:
    return any(t.gathers for r in situation.all() for t in (r.trace, r.flight, r.ring) if t)
