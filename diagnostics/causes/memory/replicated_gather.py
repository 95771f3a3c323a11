"""`memory.replicated_gather`: every rank gathers the copies of a large object from all ranks."""

from collections import Counter

from msgspec import Struct, field

from diagnostics.analysis.memory.gathers import Gather
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import PROBABLE, SEEN, Finding
from diagnostics.contract.formatting import Bytes
from diagnostics.evidence.model import Frame

_TEXTS = Texts(__file__)
LEAST_SHARE = 0.05  # Share of the peak, for one call's output.
RETAINED = 0.25  # Of that: what each step adds to the retained outputs, which four steps make as much.
LEAST_BYTES = 1 << 20  # Smaller outputs are metrics and sizes.
LEAST_UNWEIGHED_BYTES = 64 << 20  # Minimum size if neither the peak nor the size of the model is known.


class Site(Struct):
    """All calls at one place with the same size."""

    call: Gather
    calls: int
    ranks: set[int]
    alive: list[Counter[int]] = field(default_factory=list)
    """Of each rank that retains outputs: step -> bytes."""
    retained_bytes: int = 0
    """Bytes of outputs still alive at the end of the profiled window, on the rank that retains most."""
    per_step_bytes: int = 0
    """Bytes of outputs that each step adds to the retained ones."""


def decide(job: JobMemory) -> Finding:
    """Decide from the output sizes of the user's gathers, and from how much of the outputs is retained."""
    worst = max(_sites(job), key=lambda site: (site.retained_bytes, site.call.full_bytes), default=None)
    if worst is not None:
        return _confirmed(job, worst) if _weighs(job, worst) else _TEXTS.ruled_out(size=Bytes(worst.call.full_bytes))
    flights = [rank.flight for rank in job.ranks.values() if rank.flight is not None]
    flights = [flight for flight in flights if all(call.kind != "unknown" for call in flight.gathers)]
    if flights or any(rank.ring or rank.trace for rank in job.ranks.values()):
        return shared.TEXTS.ruled_out("no_other_gather")
    return shared.not_recorded(job, "callers")


def _weighs(job: JobMemory, worst: Site) -> bool:
    """Return whether the outputs of a call, or what its steps retain of them, are a large part of the memory."""
    peak, call = job.peak() or job.size.parameter_bytes, worst.call
    least = max(LEAST_SHARE * peak, LEAST_BYTES) if peak else LEAST_UNWEIGHED_BYTES
    # One tensor may be a layer's input, so its line must be known.
    is_copies = call.is_list or call.kind == "object" or (peak is not None and call.site is not None)
    return worst.per_step_bytes >= RETAINED * least or (is_copies and call.full_bytes >= least)


def _confirmed(job: JobMemory, worst: Site) -> Finding:
    peak, call = job.peak() or job.size.parameter_bytes, worst.call
    cost = max(call.full_bytes, worst.retained_bytes)
    what = _TEXTS.phrase("pickled" if call.kind == "object" else "tensor")
    row = "objects" if call.kind == "object" else "parameters" if call.like_parameter else "default"
    figures = shared.gather_figures(job, call, call.full_bytes, cost) | {
        "what": _TEXTS.phrase("like_parameter", what=what) if call.like_parameter else what,
        "part": Bytes(call.full_bytes // call.ranks),
        "share": shared.share(call.full_bytes, peak),
        "keeps": _TEXTS.phrase("keeps", size=worst.per_step_bytes) if worst.per_step_bytes else "",
        "on_more_ranks": shared.on_more_ranks(job.predicted(linear_bytes=cost), ": "),
        "saves": shared.of_peak(cost, peak),
    }
    facts, seen = _TEXTS.facts(row, **figures), _TEXTS.phrase("seen", calls=worst.calls, call=call)
    ranks, confidence = job.ranks_of(worst.ranks, call.ranks), SEEN if call.site is not None else PROBABLE
    return shared.of_gather(job, call, facts, seen, ranks, confidence=confidence, cost_bytes=cost)


def _sites(job: JobMemory) -> list[Site]:
    sites: dict[tuple[Frame | None, int, str], Site] = {}
    whole = job.size.gather_bytes
    for rank in job.ranks.values():
        scattered = rank.scattered()
        for call in rank.user_gathers():
            if call.ranks < 2 or call.full_bytes in scattered or "checkpoint" in call.region:
                continue  # Sequence parallelism scatters what it gathers; checkpoints exchange plans as objects.
            is_whole = whole is not None and shared.ALMOST_ALL * whole <= call.full_bytes <= shared.SOME_MORE * whole
            if is_whole and job.is_sharded and call.kind == "user":
                continue  # This is `memory.full_gather`.
            site = sites.setdefault((call.site, call.full_bytes, call.op), Site(call, 0, set()))
            site.calls += 1
            site.ranks.add(rank.rank)
        _retain(rank, [site for site in sites.values() if rank.rank in site.ranks])
    traced = sum(rank.curve is not None for rank in job.ranks.values())
    for site in sites.values():
        if site.alive and (len(site.alive) >= traced or max(map(len, site.alive)) >= shared.CERTAIN_STEPS):
            site.retained_bytes = max(steps.total() for steps in site.alive)
            site.per_step_bytes = max(min(steps.values()) for steps in site.alive)
    return list(sites.values())


def _retain(rank: RankMemory, sites: list[Site]) -> None:
    steps, gathered_bytes, kept_bytes = Counter[int](), Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for block in rank.curve.allocations if rank.curve is not None and sites else ():
        if block.gathered and block.step is not None:
            gathered_bytes[block.step, block.size_bytes] += block.size_bytes
            kept_bytes[block.step, block.size_bytes] += block.size_bytes if block.end_us is None else 0
    for (step, size_bytes), bytes_ in kept_bytes.items():
        # gloo's threads release a few buffers, more on a busy host, and the profiler does not record that.
        if 2 * bytes_ >= gathered_bytes[step, size_bytes]:
            steps[step] += bytes_
    if len(steps) >= 2:
        max(sites, key=lambda site: site.call.full_bytes).alive.append(steps)


CAUSE = declared(__file__, read, decide)
