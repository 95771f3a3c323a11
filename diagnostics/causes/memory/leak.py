"""`memory.leak`: memory that each step leaves allocated, shown by allocations that outlive it or a rising timeline."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.memory.job import JobMemory, RankMemory, named
from diagnostics.analysis.memory.measures import read
from diagnostics.analysis.memory.over_time import NOWHERE
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.causes.memory._shared import CERTAIN_STEPS
from diagnostics.contract.findings import CERTAIN, LIKELY, PLAUSIBLE, POSSIBLE, SEEN, EvidenceItem, Finding
from diagnostics.contract.formatting import Bytes, region_text
from diagnostics.evidence.memory.levels import Rise
from diagnostics.evidence.model import Frame

PARTS = 8  # Parts of a series whose medians all rise in a leak (`STEADY`): those of noise do once in 8! = 40,320 times.
MAX_POINTS = 25 * PARTS


class Growth(Struct, frozen=True):
    """Growth of a series over steps."""

    first_half: float
    second_half: float
    """Bytes per step of each half by Theil-Sen, the median slope of pairs of points; warm-up: a flat second half."""
    rising: float
    """Share of adjacent stretches that rise, 0 to 1."""
    steps: int
    """Number of steps from the first point to the last."""


def growth(points: Sequence[tuple[int, int]]) -> Growth | None:
    """Return the growth of (step, bytes) points, ascending by step; None for fewer than `PARTS` points."""
    if len(points) < PARTS:
        return None
    thinned = points[:: -(-len(points) // MAX_POINTS)]
    half, width = len(thinned) // 2, len(thinned) / PARTS
    parts = [thinned[int(n * width) : max(int((n + 1) * width), int(n * width) + 1)] for n in range(PARTS)]
    medians = [median(value for _, value in part) for part in parts if part]
    return Growth(
        first_half=slope(thinned[: half + 1]),
        second_half=slope(thinned[half:]),
        rising=sum(after > before for before, after in pairwise(medians)) / (len(medians) - 1),
        steps=points[-1][0] - points[0][0],
    )


def slope(points: Sequence[tuple[int, int]]) -> float:
    """Return the median slope over pairs half a series apart, in linear time and robust against outliers."""
    half = max(1, len(points) // 2)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(points, points[half:]) if b[0] > a[0]]
    return median(slopes) if slopes else 0.0


_TEXTS = Texts(__file__)
LEAST_BYTES = 64 << 10  # Minimum bytes per step; with less, it would take a million steps to fill a device.
LEAST_SHARE = 0.01  # Minimum share of the peak per step, if single allocations are known.
ALIKE = 2  # Maximum ratio of the largest to the smallest leftover of the steps of a leak.
LEAST_GROWTH = 0.05  # Minimum growth over the whole timeline, as a share of the last value.
STEADY = 0.99  # Minimum share of rising stretches: all of them.
CORROBORATES = 0.25  # Share of the growth by allocations that the timeline must show to corroborate it.
LONG = 16  # Number of steps from which a timeline that does not rise contradicts a leak.
LONG_OF_PROCESS = 40  # Minimum number of steps if only the resident set is known, which changes for many reasons.
PROCESS_FACTOR = 3  # Factor on `LEAST_GROWTH` for the resident set.
WARM_UP = 3  # The first one part in so many of the stretches is not compared: caches and optimizer states are new.
_BEGINNING = 10  # The first one part in so many steps, at least 2, is left out: they allocate permanent state.
BUFFERED = 2  # Last stretches between backward passes in which a backend may hold buffers (gloo: its work objects).
ASSUMED_STEPS = 100  # Number of steps for the cost, if the length of the run is not known.


class Leftover(Struct, frozen=True):
    """Memory that each step leaves allocated on a rank."""

    rank: int
    per_step_bytes: int
    item: EvidenceItem
    confidence: float
    steps: int
    """Number of steps in which it was observed."""
    region: str = ""
    """The annotation inside which it was allocated."""
    site: Frame | None = None
    """The line that allocated it, or with `at_head` the first line of the function."""
    at_head: bool = True


def decide(job: JobMemory) -> Finding:
    """Decide from memory left at the same place by every step of a window, or else from a steady rise."""
    all_ranks = list(job.ranks.values())
    ways = (_by_allocations, _by_snapshot, _by_rise, _by_timeline)
    by_rank = [next(filter(None, (way(job, rank) for way in ways)), None) for rank in all_ranks]
    leftovers = [leftover for leftover in by_rank if leftover is not None]
    traced = [rank for rank in all_ranks if rank.curve is not None]
    if leftovers and (len(leftovers) >= len(traced) or any(leftover.steps >= CERTAIN_STEPS for leftover in leftovers)):
        return _confirmed(job, leftovers)
    if leftovers:
        ranks = shared.rank_names(leftover.rank for leftover in leftovers)
        return _TEXTS.undecided(["few", "four_steps" if job.evidence.is_dtk else "four_profiled"], who=ranks)
    rises = {rank.rank: rise for rank in all_ranks if (rise := _rise(rank)) is not None}
    least = _least_bytes(job)
    windows = [len(rise.grown) for rise in rises.values() if rise.are_steps and max(map(abs, rise.grown)) < least]
    windows += [len(rank.curve.steps) for rank in traced if rank.curve is not None]
    windows += [steps for steps in map(_whole_steps, all_ranks) if steps >= CERTAIN_STEPS]
    if any(count >= 2 for count in windows):
        return _TEXTS.ruled_out("freed", later=max(windows) - 1)
    if series := [grown for rank in all_ranks if (grown := _series(rank)) is not None and grown[1].steps >= LONG]:
        return _TEXTS.ruled_out("flat", grows=Bytes(max(0.0, *(grown.second_half for _, grown in series))))
    if growing := {n: rise.grown for n, rise in rises.items() if not rise.are_steps and _is_steady(job, rise.grown)}:
        most, who = max(growing.values(), key=min), shared.rank_names(growing)
        finding = _TEXTS.undecided(["stretches", "stacks"], size=Bytes(min(most)), times=len(most), who=who)
        return replace(finding, ranks=named(growing))
    if unmarked := [rank for rank in traced if rank.curve is not None and not rank.curve.steps]:
        kept = dict[int, int]()  # How much memory grows between backward passes, where it grows steadily.
        for rank in unmarked:
            sums = rank.curve.between_backwards() if rank.curve is not None else []
            sums = sums[len(sums) // WARM_UP : -BUFFERED]
            if len(sums) >= CERTAIN_STEPS and min(sums) >= _least_bytes(job) and max(sums) <= ALIKE * min(sums):
                kept[rank.rank] = min(sums)
        size, ranks = Bytes(max(kept.values(), default=0)), shared.rank_names(kept)
        return _TEXTS.undecided(["between_backwards" if kept else "unmarked", "mark"], size=size, who=ranks)
    return shared.not_recorded(job, "steps")


def _confirmed(job: JobMemory, leftovers: list[Leftover]) -> Finding:
    worst = max(leftovers, key=lambda leftover: (leftover.per_step_bytes, -leftover.rank))
    ranks = sorted(leftover.rank for leftover in leftovers)
    steps = job.evidence.declared("train.steps")
    steps = steps if isinstance(steps, int) and steps > 0 else ASSUMED_STEPS
    region, place = worst.region, shared.spot(worst.site, worst.at_head)
    kept = "optimizer" if region.startswith("Optimizer.") else "placed" if region or place else "unplaced"
    return shared.confirmed(
        job,
        _TEXTS.facts(
            ("default", kept),
            each=Bytes(worst.per_step_bytes),
            who=shared.rank_names(ranks),
            at=_TEXTS.phrase("allocated", region=region_text(region), place=place) if region else place,
            total=Bytes(worst.per_step_bytes * steps),
            steps=steps,
            what=region_text(region) or shared.spot(worst.site, at_head=False).removeprefix(" at "),
        ),
        confidence=worst.confidence,
        ranks=ranks,
        where=shared.where(worst.site, worst.at_head, worst.rank, _TEXTS.phrase("does")),
        cost_bytes=worst.per_step_bytes * steps,
        evidence=tuple(leftover.item for leftover in leftovers[:2]),
    )


def _least_bytes(job: JobMemory, steps: int = 1) -> float:
    """Return the minimum bytes per step; the leftovers of `steps` recorded steps count together, as in a timeline."""
    return max(LEAST_BYTES, min(LEAST_SHARE, LEAST_GROWTH / steps) * (job.peak() or 0))


def _by_allocations(job: JobMemory, rank: RankMemory) -> Leftover | None:
    """Return what every step of the window leaves at the same place, except gathered outputs; None if nothing."""
    curve = rank.curve
    if curve is None or len(curve.steps) < 2:
        return None
    kept, least = curve.retained(), _least_bytes(job)
    regions = {region: [kept[step][region] for step in sorted(kept)] for sizes in kept.values() for region in sizes}
    alike = {region: min(sizes) for region, sizes in regions.items() if max(sizes) <= ALIKE * min(sizes)}
    if not (steady := {region: size for region, size in alike.items() if size >= least}):
        return None
    region = max(steady, key=lambda name: steady[name])
    series, per_step = _series(rank), sum(steady.values())
    rising = series is not None and series[1].second_half >= CORROBORATES * per_step
    if series is not None and series[1].steps >= LONG and not rising:
        return None  # Two steps looked like growth, but the whole run does not grow as much.
    shown = "" if region in NOWHERE else region
    row, figures = "seen" if shown else "seen_outside", {"first": min(kept), "last": max(kept), "size": steady[region]}
    detail = _TEXTS.phrase(row, region=region_text(shown), **figures)
    confidence = SEEN if rising or len(kept) > CERTAIN_STEPS else CERTAIN if len(kept) == CERTAIN_STEPS else PLAUSIBLE
    sites = curve.kept_sites.get(region, Counter())
    site = max(sites, key=lambda frame: (sites[frame], frame.file, frame.line), default=None)
    item = EvidenceItem("trace", rank.trace_file, detail)
    return Leftover(rank.rank, per_step, item, confidence, len(kept), shown, site)


def _by_snapshot(job: JobMemory, rank: RankMemory) -> Leftover | None:
    """Return what every whole step in the allocator's history leaves, allocated at the same line; else None."""
    leftovers, steps = [], _whole_steps(rank)
    for site, sizes in rank.fullest.kept.items() if rank.fullest is not None and rank.curve is None else ():
        size, most = min(sizes.values()), max(sizes.values())
        if len(sizes) == steps >= CERTAIN_STEPS and size >= _least_bytes(job, steps) and most <= ALIKE * size:
            item = EvidenceItem("snapshot", rank.snapshot_file, _TEXTS.phrase("seen_held", steps=steps, size=size))
            leftovers.append(Leftover(rank.rank, size, item, CERTAIN, steps, site=site, at_head=False))
    return max(leftovers, key=lambda leftover: leftover.per_step_bytes, default=None)


def _by_rise(job: JobMemory, rank: RankMemory) -> Leftover | None:
    """Return the growth between equal points of the steps of an exported timeline; else None."""
    rise = _rise(rank)
    if rise is None or rank.history is None or not rise.are_steps or not _is_steady(job, rise.grown):
        return None
    size, steps = min(rise.grown), len(rise.grown)
    item = EvidenceItem(*rank.history[1:], _TEXTS.phrase("seen_rise", steps=steps, size=size))
    return Leftover(rank.rank, size, item, LIKELY, steps)


def _rise(rank: RankMemory) -> Rise | None:
    return rank.history[0].rise if rank.history is not None and rank.curve is None else None


def _is_steady(job: JobMemory, grown: Sequence[int]) -> bool:
    return min(grown) >= _least_bytes(job, len(grown)) and max(grown) <= ALIKE * min(grown)


def _whole_steps(rank: RankMemory) -> int:
    return rank.fullest.history.whole_steps if rank.fullest is not None and rank.fullest.history is not None else 0


def _by_timeline(job: JobMemory, rank: RankMemory) -> Leftover | None:
    """Return a steady rise of memory, or None. That of the process must be longer and larger than the allocator's."""
    series = _series(rank)
    if series is None:
        return None
    exact, grown = series
    total, last = grown.second_half * grown.steps, rank.steps[-1]
    size = last.allocated_bytes or last.rss_bytes or 0
    steady = grown.rising >= STEADY and grown.first_half > 0 and grown.second_half / grown.first_half >= 1 / ALIKE
    least_steps, factor = (LONG, 1) if exact else (LONG_OF_PROCESS, PROCESS_FACTOR)
    enough = grown.steps >= least_steps and total >= max(factor * LEAST_GROWTH * size, LEAST_BYTES)
    if not steady or not enough or grown.second_half > ALIKE * grown.first_half:
        return None
    detail = _TEXTS.phrase("rises" if exact else "process_rises", grown=grown)
    item = EvidenceItem("timeline", rank.timeline_file, detail)
    return Leftover(rank.rank, int(grown.second_half), item, CERTAIN if exact else POSSIBLE, grown.steps)


def _series(rank: RankMemory) -> tuple[bool, Growth] | None:
    """Return (is from the allocator, growth) without the first steps, which allocate permanent state."""
    steps = rank.steps[max(2, len(rank.steps) // _BEGINNING) :]
    exact = growth([(step.step, step.allocated_bytes) for step in steps if step.allocated_bytes is not None])
    process = exact or growth([(step.step, step.rss_bytes) for step in steps if step.rss_bytes is not None])
    return None if process is None else (exact is not None, process)


CAUSE = declared(__file__, read, decide)
