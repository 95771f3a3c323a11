"""Copies that grow with the ranks or with the model: `memory.replicated_gather` and `memory.full_state_dict`."""

from collections import Counter
from dataclasses import dataclass, field

from diagnostics.analysis.memory.gathers import Gather
from diagnostics.analysis.memory.job import RankMemory, Situation
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Remedy, Where
from diagnostics.detectors.memory.gathers import ALMOST_ALL
from diagnostics.detectors.memory.predict import grown
from diagnostics.detectors.memory.say import ranks, share, size, spot, where
from diagnostics.evidence.model import Frame

COPIES = "memory.replicated_gather"
STATE_DICT = "memory.full_state_dict"
LEAST_SHARE = 0.05
"""Of the peak, for one call's output or for what has come together of it."""
LEAST_BYTES = 1 << 20
LEAST_UNWEIGHED_BYTES = 64 << 20
"""Where neither the peak nor the model's size is known."""
_RECORD = "record=full (allocations and calls); for other jobs profile_memory=True, record_shapes=True"
_OUTSIDE = frozenset({"checkpoint", "outside", "step", "evaluation"})


@dataclass(slots=True)
class _Site:
    """All calls of one place with one size."""

    gather: Gather
    calls: int = 0
    ranks: set[int] = field(default_factory=set)
    retained_bytes: int = 0
    """Outputs still alive when the profiled window closed, of the rank that keeps most."""
    per_step_bytes: int = 0
    """What each step adds to them."""


def replicated_gather(situation: Situation) -> Finding:
    """Whether the user's code collects every rank's copy of something large."""
    sites = _sites(situation)
    peak = situation.peak() or situation.facts.parameter_bytes
    worst = max(sites, key=lambda one: (one.retained_bytes, one.gather.full_bytes), default=None)
    if worst is not None and _is_large(worst, peak):
        return _copies(situation, worst, peak)
    if worst is not None:
        text = size(worst.gather.full_bytes)
        measured = f"largest output of a gather outside the sharded units {text}"
        return Finding(cause=COPIES, status="ruled_out", summary="No gather of the code is large.", measured=measured)
    if any(rank.ring or rank.trace for rank in situation.all()):
        what = "no gather outside the sharded units"
        return Finding(cause=COPIES, status="ruled_out", summary=f"There is {what}.", measured=what)
    if any(rank.flight and not _unknown(rank) for rank in situation.all()):
        what = "no gather by the user's code in the last collectives"
        return Finding(cause=COPIES, status="ruled_out", summary=f"There is {what}.", measured=what)
    return Finding(cause=COPIES, status="undecided", summary="Who gathers what was not recorded.", missing=_RECORD)


def _unknown(rank: RankMemory) -> bool:
    return rank.flight is not None and any(one.kind == "unknown" for one in rank.flight.gathers)


def _sites(situation: Situation) -> list[_Site]:
    found: dict[tuple[Frame | None, int, str], _Site] = {}
    for rank in situation.all():
        scattered = rank.scattered()
        for one in rank.user_gathers():
            if (
                one.ranks < 2
                or one.full_bytes in scattered
                or "checkpoint" in one.region
                or _is_whole_model(situation, one)
            ):
                continue  # sequence parallelism scatters what it gathers; checkpoints exchange plans as objects
            site = found.setdefault((one.site, one.full_bytes, one.op), _Site(one))
            site.calls += 1
            site.ranks.add(rank.rank)
        _retained(rank, [one for one in found.values() if rank.rank in one.ranks])
    return list(found.values())


def _is_whole_model(situation: Situation, one: Gather) -> bool:
    """Such a call is `memory.full_gather`."""
    whole = situation.facts.gather_bytes
    return bool(
        situation.is_sharded and whole and one.kind == "user" and ALMOST_ALL * whole <= one.full_bytes <= 1.3 * whole
    )


def _retained(rank: RankMemory, sites: list[_Site]) -> None:
    """Give what stays alive of gathered outputs to the site with outputs of such sizes."""
    if rank.curve is None or not sites:
        return
    steps = Counter[int]()
    for one in rank.curve.allocations:
        if one.gathered and one.end_us is None and one.step is not None:
            steps[one.step] += one.size_bytes
    if len(steps) < 2:
        return
    largest = max(sites, key=lambda site: site.gather.full_bytes)
    largest.retained_bytes = max(largest.retained_bytes, sum(steps.values()))
    largest.per_step_bytes = max(largest.per_step_bytes, min(steps.values()))


def _is_large(site: _Site, peak: int | None) -> bool:
    """Outputs that are kept, or a single one that weighs.

    Into one tensor it may be what a parallel layer computes with, so there the line must be known as well as the
    peak; a list of tensors and objects are copies by nature.
    """
    one = site.gather
    least = max(LEAST_SHARE * peak, LEAST_BYTES) if peak else LEAST_UNWEIGHED_BYTES
    if site.per_step_bytes >= least / 4:
        return True
    copies = one.is_list or one.kind == "object"
    return (copies or (peak is not None and one.site is not None)) and one.full_bytes >= least


def _copies(situation: Situation, site: _Site, peak: int | None) -> Finding:
    one = site.gather
    blamed = situation.ranks_of(site.ranks, one.ranks)
    cost = max(one.full_bytes, site.retained_bytes)
    future = grown(situation, linear_bytes=cost)
    at = spot(one.site, one.at_head) if one.site else ""
    what = "pickled objects" if one.kind == "object" else "a tensor"
    what += ", as large as one of the parameters," if one.like_parameter else ""
    part = one.full_bytes // one.ranks
    summary = f"Every rank collects the copies of all {one.ranks} ranks of {what} of {size(part)} ({one.op}{at})"
    summary += f", {size(one.full_bytes)} a call{share(one.full_bytes, peak)}"
    if site.per_step_bytes:
        summary += f", and keeps them: {size(site.per_step_bytes)} more with every step"
    summary += f". It grows with the number of ranks{': ' + future.text() if future else ''}."
    return Finding(
        cause=COPIES,
        status="confirmed",
        summary=summary,
        confidence=0.95 if one.site is not None else 0.8,
        ranks=blamed,
        step=one.step,
        where=_where(one, blamed),
        cost=Cost(cost, "bytes"),
        evidence=(
            EvidenceItem(one.evidence, one.file, f"{site.calls} x {one.op} of {size(one.full_bytes)}"),
            *situation.peak_items(),
        ),
        remedies=(_copies_remedy(one, at, cost, peak),),
        measured=f"{size(one.full_bytes)} a call, {one.ranks} copies",
    )


def _copies_remedy(one: Gather, at: str, cost: int, peak: int | None) -> Remedy:
    saves = f"up to {size(cost)}" + (f" of {size(peak)}" if peak else "")
    if one.kind == "object":
        change = f"gather tensors of fixed size, or only the scalars you need, instead of objects{at}"
        return Remedy("code", change, "objects are pickled and unpickled: 2 N + 1 copies at the peak", saves)
    if one.like_parameter:
        change = f"do not gather parameters or gradients{at}: to compare ranks, gather a norm or a hash of each; "
        change += "to average, all_reduce in place; to save, save on one rank"
        return Remedy("code", change, "every rank has a copy of its own: N of them are needed on no rank", saves)
    change = f"reduce before you gather{at}: argmax or the metric's sums on each rank, then one all_reduce of scalars"
    return Remedy("code", change, "N copies of a full tensor are needed on no rank", saves)


def _where(one: Gather, blamed: tuple[int, ...]) -> tuple[Where, ...]:
    if one.site is None:
        return ()
    first = blamed[0] if blamed else None
    does = f"{one.op} of {size(one.full_bytes)}"
    return where(one.site, one.at_head, first, does)


def full_state_dict(situation: Situation) -> Finding:
    """Whether a checkpoint brings the whole model (or more) to one rank's memory at once."""
    whole = situation.facts.gather_bytes
    for rank in situation.all():
        gathers = _outside_gathers(rank)
        times = len({one.step for one in gathers}) or 1
        total = sum(one.full_bytes for one in gathers) // times
        if not whole or total < ALMOST_ALL * whole or len(gathers) < 2 * times:
            continue
        alive = _alive_together(rank)
        if alive is not None and alive >= whole / 2:
            return _state_dict(situation, gathers[: len(gathers) // times], total, alive, whole)
        if alive is not None:
            measured = f"{len(gathers) // times} gathers, at most {size(alive)} of {size(whole)} alive together"
            summary = "Parameters are gathered outside the step, but freed one by one."
            return Finding(cause=STATE_DICT, status="ruled_out", summary=summary, measured=measured)
        summary = (
            f"{len(gathers)} gathers outside the step bring {size(total)}; whether they are kept was not recorded."
        )
        return Finding(cause=STATE_DICT, status="undecided", summary=summary, missing=_RECORD)
    if situation.facts.shards == 1:
        why = f"strategy {situation.facts.strategy} shards no parameters"
        return Finding(cause=STATE_DICT, status="ruled_out", summary=f"Nothing to gather: {why}.", measured=why)
    if any(rank.trace or rank.flight for rank in situation.all()):
        what = "no gathers for a state dict in what was recorded"
        return Finding(cause=STATE_DICT, status="ruled_out", summary=f"There are {what}.", measured=what)
    return Finding(cause=STATE_DICT, status="undecided", summary="No collectives were recorded.", missing=_RECORD)


def _outside_gathers(rank: RankMemory) -> list[Gather]:
    """One gather for each parameter, by DTensor or by the state-dict functions."""
    if rank.trace is not None and (found := [one for one in rank.trace.gathers if one.kind == "library"]):
        return found
    return [one for one in rank.flight.gathers if one.kind == "state_dict"] if rank.flight is not None else []


def _alive_together(rank: RankMemory) -> int | None:
    """Most bytes of gathered outputs that were alive at one moment; None without allocations."""
    if rank.curve is None:
        return None
    moves = []
    for one in rank.curve.allocations:
        if one.gathered:
            moves.append((one.start_us, one.size_bytes))
            if one.end_us is not None:
                moves.append((one.end_us, -one.size_bytes))
    level = most = 0
    for _, change in sorted(moves):
        level += change
        most = max(most, level)
    return most


def _state_dict(situation: Situation, gathers: list[Gather], total: int, alive: int, whole: int) -> Finding:
    first = next((one for one in gathers if one.site is not None), gathers[0])
    if first.site is None:
        first = _with_line(situation, first)
    blamed = situation.ranks_of([rank.rank for rank in situation.all()], first.ranks)
    peak, future = situation.peak(), grown(situation, fixed_bytes=alive)
    times = total / whole
    what = "parameters" if times < 1.5 else "parameters and optimizer states"
    summary = f"A full state dict is built on {ranks(blamed)}: {len(gathers)} gathers bring all {what}, "
    summary += f"{size(alive)} of them alive at once{share(alive, peak)}{'; ' + future.text() if future else ''}."
    if situation.is_dtk:
        remedy = Remedy("override", "checkpoint.export=false", "checkpoints are sharded; only the export gathers")
    else:
        change = "save sharded with torch.distributed.checkpoint (or full_state_dict with cpu_offload on rank 0 only)"
        remedy = Remedy("code", change, "each rank writes its own shard: no gather, no copy", f"{size(alive)}")
    return Finding(
        cause=STATE_DICT,
        status="confirmed",
        summary=summary,
        confidence=0.9,
        ranks=blamed,
        step=first.step,
        where=_where(first, blamed),
        cost=Cost(alive, "bytes"),
        evidence=(
            EvidenceItem(first.evidence, first.file, f"{len(gathers)} gathers of {size(total)} together"),
            *situation.peak_items(),
        ),
        remedies=(remedy,),
        measured=f"{size(alive)} alive at once",
    )


def _with_line(situation: Situation, gather: Gather) -> Gather:
    """The same with the line that a flight dump knows."""
    for rank in situation.all():
        for one in rank.flight.gathers if rank.flight else ():
            if one.site is not None and one.kind == "state_dict":
                return one
    return gather
