"""Why a job stands still, computed once in a fixed order: what explains the waiting of a rank settles it.

The order is that of cause and effect: calls that differ come before the ends that they lead to, ends before cycles,
cycles before ranks that are late, and what no rank is to blame for comes last.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.analysis import job_state
from diagnostics.analysis.divergence import Divergence
from diagnostics.analysis.divergence import find as find_divergences
from diagnostics.analysis.job_state import JobState
from diagnostics.analysis.stall import blameless, circular, endings, late
from diagnostics.analysis.stall.blameless import NeverCompletes, RootDiffers, Startup, StartupFailed
from diagnostics.analysis.stall.circular import CircularWait, GroupOrder, PointToPoint
from diagnostics.analysis.stall.departure import Departure, EndedInRound, MoreCalls, departure
from diagnostics.analysis.stall.endings import DdpUnused, FirstEndings, Missing
from diagnostics.analysis.stall.late import DeviceStall, HostStall, RanAhead
from diagnostics.analysis.stall.size_mismatch import SizesDiffer, sizes_differ
from diagnostics.analysis.stall.stack_evidence import DifferentCollectives, HostOutside, by_stacks
from diagnostics.analysis.stall.straggler import Straggler, straggler
from diagnostics.analysis.stall.timeline import Point, point_of, timeline
from diagnostics.analysis.stall.unrecorded_transfer import UnrecordedTransfer, unrecorded_transfer
from diagnostics.analysis.stall.watchdog import WatchdogCase, WatchdogGap, WatchdogMismatch, watchdog_case
from diagnostics.analysis.wait_graph.missed_call import MissedCall
from diagnostics.evidence.model import Evidence

_LIKELY = 0.5
"""A divergence of less confidence is a suspicion, no root cause."""


@dataclass(frozen=True, slots=True)
class Stall:
    """What explains that ranks wait. Every cause of a hang reads its own part."""

    job: JobState
    divergences: tuple[Divergence, ...] = ()
    """The earliest one, and those of groups that it cannot have touched."""
    sizes: SizesDiffer | None = None
    watchdog: WatchdogCase | None = None
    transfer: UnrecordedTransfer | None = None
    stacks: DifferentCollectives | HostOutside | None = None
    """Only where nothing else explains the waiting."""
    roots_differ: tuple[RootDiffers, ...] = ()
    ddp_unused: DdpUnused | None = None
    endings: tuple[FirstEndings, ...] = ()
    departure: Departure | None = None
    """How the calls of ranks that ended in order compare with those of the others."""
    missing: Missing | None = None
    circular: tuple[CircularWait, ...] = ()
    device: DeviceStall | None = None
    host: HostStall | None = None
    ahead: RanAhead | None = None
    never_complete: tuple[NeverCompletes, ...] = ()
    startup: Startup | StartupFailed | None = None
    straggler: Straggler | None = None

    @property
    def confirmed(self) -> bool:
        """Whether any cause is known well enough to explain the waiting."""
        startup = isinstance(self.startup, StartupFailed) or bool(self.startup and self.startup.stuck)
        return bool(
            any(divergence.confidence >= _LIKELY for divergence in self._all_divergences())
            or (self.sizes and self.sizes.divergence is None)
            or isinstance(self.watchdog, WatchdogMismatch | WatchdogGap)
            or (self.transfer and self.transfer.world_known)
            or isinstance(self.stacks, HostOutside)
            or self.roots_differ
            or self.ddp_unused
            or self.endings
            or (self.missing and self.missing.abort)
            or self.circular
            or self.device
            or self.host
            or self.ahead
            or self.never_complete
            or startup
        )

    @property
    def unclear(self) -> tuple[int, ...]:
        """Ranks that never came, without a stack that shows why."""
        unknown = self.host.ranks if self.host and not self.host.known else ()
        behind = self.watchdog.culprits if isinstance(self.watchdog, WatchdogGap) and not self.watchdog.few_wait else ()
        outside = self.stacks.ranks if isinstance(self.stacks, HostOutside) else ()
        return (*unknown, *behind, *outside)

    @property
    def suspected(self) -> bool:
        """Whether any cause is known, be it only as a suspicion."""
        return self.confirmed or bool(self.divergences or self.sizes or self.transfer)

    def _all_divergences(self) -> tuple[Divergence, ...]:
        met = self.sizes.divergence if self.sizes else None
        return (*self.divergences, met) if met else self.divergences

    def measures(self) -> dict[str, Any]:
        """Return the figures about the hang for the report."""
        job = self.job
        hang: dict[str, Any] = {
            "ranks": len(job.survey.ranks),
            "world_size": job.world(),
            "groups": len(job.survey.groups),
            "calls_compared": job.survey.positions,
            "ranks_waiting": len(job.pending_ranks()),
        }
        if self.suspected or self.straggler:
            culprits = {rank for ranks in self._culprits() for rank in ranks}
            drawn = timeline(job, next(self._points(), None), culprits)
            hang |= {"timeline": drawn} if drawn is not None else {}
        return {"hang": hang}

    def _culprits(self) -> Iterator[tuple[int, ...]]:
        yield from (divergence.culprits for divergence in self._all_divergences())
        yield self.watchdog.culprits if isinstance(self.watchdog, WatchdogMismatch | WatchdogGap) else ()
        yield tuple(self.transfer.ranks) if self.transfer else ()
        yield self.stacks.ranks if isinstance(self.stacks, HostOutside) else ()
        yield from ((one.deviating,) if one.deviating is not None else one.waiting for one in self.roots_differ)
        yield self.ddp_unused.ranks if self.ddp_unused else ()
        yield from (one.culprits for one in self.endings)
        yield self.missing.ranks if self.missing and self.missing.abort else ()
        yield self.departure.ranks if isinstance(self.departure, MoreCalls | EndedInRound) else ()
        for wait in self.circular:
            yield tuple(rank for rank, _ in wait.calls) if isinstance(wait, PointToPoint) else wait.culprits
        yield from (case.ranks for case in (self.device, self.host, self.ahead) if case is not None)
        yield (self.straggler.rank,) if self.straggler else ()

    def _points(self) -> Iterator[Point]:
        """Where the causes are, in the order of cause and effect."""
        for divergence in self.divergences:
            if divergence.position and (point := point_of(self.job, divergence.key, divergence.position)):
                yield point
        operations = [one.operation for one in self.roots_differ]
        if isinstance(self.departure, MoreCalls):
            yield self.departure.extra[0].key, self.departure.extra[0].seq
        for wait in self.circular:
            if isinstance(wait, MissedCall):
                yield wait.there.key, wait.there.seq
            operations += [min(wait.cycle.operations)] if isinstance(wait, GroupOrder) else []
        operations += [case.operation for case in (self.device, self.host, self.ahead) if case is not None]
        operations += [case.operation for case in self.never_complete]
        yield from ((operation.key, operation.seq) for operation in operations if operation.peer < 0)
        if self.straggler:
            yield self.straggler.key, self.straggler.position


def explain(evidence: Evidence, known: Divergence | None = None) -> Stall:
    """Explain the waiting in a job.

    Args:
        evidence: of the job.
        known: the divergence of a job whose ranks' calls are known to their very end, as in a simulation.
    """
    job = job_state.build(evidence)
    if evidence.doubt:  # Exceptions and signals need no comparison of ranks.
        return Stall(job, ddp_unused=endings.ddp_unused(job), endings=endings.first_endings(job))
    if job.finished():
        return Stall(job, straggler=straggler(job))
    waits, explained = job.waits, set[int]()
    divergences = [known] if known is not None else _divergences(job)
    for divergence in divergences:
        touched = set(job.survey.members(divergence.key)) | set(divergence.vote.present)
        explained |= touched | waits.reaching(touched)
    sizes = None if any(divergence.culprits for divergence in divergences) else sizes_differ(job)
    if sizes is not None:
        explained |= set(sizes.divergence.vote.present if sizes.divergence else sizes.victims)
    roots_differ = blameless.roots_differ(job, explained)
    for case in roots_differ:
        explained |= {*case.waiting, *case.complete} | waits.reaching(case.waiting)
    ddp = endings.ddp_unused(job)
    if ddp is not None:
        explained |= set(ddp.ranks) | waits.reaching(ddp.ranks)
    first = endings.first_endings(job)
    in_order = next((case for case in first if all(end.in_order for end in case.endings)), None)
    left = departure(job, in_order.culprits) if in_order is not None else None
    for ended in first:
        ranks = {end.rank for end in ended.endings}
        explained |= ranks | waits.reaching(ranks)
    missing = None
    if not any(end.by_itself for end in job.endings.values()):
        missing = endings.missing_ranks(job, explained)
    if missing is not None:
        touched = set(missing.ranks) | waits.reaching(missing.ranks)
        explained |= touched - set(late.lagging(job)) if missing.no_dump else touched
    logs = watchdog_case(job)
    explained |= set(logs.members) if isinstance(logs, WatchdogMismatch | WatchdogGap) else set()
    cycles = circular.circular_waits(job, explained)
    for wait in cycles:
        ranks = set(wait.ranks) if isinstance(wait, MissedCall) else set(wait.cycle.ranks)
        explained |= ranks | waits.reaching(ranks)
    transfer = unrecorded_transfer(job, explained) if not cycles and job.stands_still() else None
    if transfer is not None:
        explained |= {*transfer.ranks, *transfer.waiting}
    device = late.device_stall(job, explained) if job.stands_still() else None
    if device is not None:
        explained |= set(device.ranks) | waits.reaching(device.ranks)
    host = late.late_hosts(job, explained) if job.stands_still() else None
    if host is not None:
        explained |= set(host.ranks if isinstance(host, HostStall) else host.others)
    stall = Stall(
        job,
        divergences=tuple(divergences),
        sizes=sizes,
        watchdog=logs,
        transfer=transfer,
        roots_differ=tuple(roots_differ),
        ddp_unused=ddp,
        endings=first,
        departure=left,
        missing=missing,
        circular=tuple(cycles),
        device=device,
        host=host if isinstance(host, HostStall) else None,
        ahead=host if isinstance(host, RanAhead) else None,
    )
    stacks = None if stall.suspected else by_stacks(job, explained)
    if isinstance(stacks, HostOutside):
        explained |= {*stacks.ranks, *stacks.inside}
    never_complete = tuple(blameless.never_complete(job, explained))
    explained |= {rank for stuck in never_complete for rank in stuck.ranks}
    return replace(
        stall,
        stacks=stacks,
        never_complete=never_complete,
        startup=blameless.startup(job),
        straggler=None if explained else straggler(job),
    )


def _divergences(job: JobState) -> list[Divergence]:
    """Find the earliest divergence of the ranks' calls, and those that it cannot have touched."""
    run = job.evidence.run
    steps = run.get("train.steps") if run is not None else None
    stopped_early = {}
    if isinstance(steps, int):
        stopped_early = {rank: (job.step_of(rank) or steps) < steps for rank in job.survey.ranks}
    ended = [rank for rank, end in job.endings.items() if end.in_order]
    return find_divergences(job.survey, job.reading.calls, job.waits.reaching, ended, stopped_early)
