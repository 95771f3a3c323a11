"""Why a job stands still, computed once in a fixed order: what explains the waiting of a rank settles it.

The order is that of cause and effect: calls that differ come before the ends that they lead to, ends before cycles,
cycles before ranks that are late, and what no rank is to blame for comes last.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diagnostics.analysis import job_state
from diagnostics.analysis.divergence import Divergence
from diagnostics.analysis.job_state import JobState
from diagnostics.analysis.stall import blameless, circular, endings, late
from diagnostics.analysis.stall.blameless import NeverCompletes, RootDiffers, Startup, StartupFailed
from diagnostics.analysis.stall.circular import CircularWait, GroupOrder, PointToPoint
from diagnostics.analysis.stall.departure import Departure, EndedInRound, MoreCalls, departure
from diagnostics.analysis.stall.endings import DdpUnused, FirstEndings, Missing
from diagnostics.analysis.stall.late import DeviceStall, HostStall, RanAhead
from diagnostics.analysis.stall.straggler import Straggler, straggler
from diagnostics.analysis.stall.timeline import Point, point_of, timeline
from diagnostics.analysis.wait_graph.missed_call import MissedCall
from diagnostics.contract.findings import Finding
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.disagree import by_size, divergence
from diagnostics.detectors.hang.unrecorded import by_place, unseen, watchdog
from diagnostics.evidence.model import Evidence


@dataclass(frozen=True, slots=True)
class Stall:
    """What explains that ranks wait. Every cause of a hang reads its own part."""

    job: JobState
    findings: tuple[Finding, ...] = ()
    """Of calls that differ, and of jobs that only logs and stacks show."""
    excluded: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Causes that the first divergence is not: why, and what was measured."""
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
            any(one.status == "confirmed" and one.confidence >= 0.5 for one in self.findings)
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
        ranks = self.host.ranks if self.host and not self.host.known else ()
        found = [one for one in self.findings if one.cause == "hang.host_stall" and one.confidence < 0.9]
        return (*ranks, *(rank for one in found for rank in one.ranks))

    def measures(self) -> dict[str, Any]:
        """The figures of the report about the hang."""
        job = self.job
        hang: dict[str, Any] = {
            "ranks": len(job.survey.ranks),
            "world_size": job.world(),
            "groups": len(job.survey.groups),
            "calls_compared": job.survey.positions,
            "ranks_waiting": len(job.pending_ranks()),
        }
        if any(one.status == "confirmed" for one in self.findings) or self.confirmed or self.straggler:
            culprits = {rank for one in self.findings if one.status == "confirmed" for rank in one.ranks}
            culprits |= {rank for ranks in self._culprits() for rank in ranks}
            drawn = timeline(job, next(self._points(), None), culprits)
            hang |= {"timeline": drawn} if drawn is not None else {}
        return {"hang": hang}

    def _culprits(self) -> Iterator[tuple[int, ...]]:
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
        for one in self.findings:
            if (
                one.status == "confirmed"
                and one.group
                and one.position
                and (point := point_of(self.job, one.group, one.position))
            ):
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
    context = Context(job.evidence, job.reading, job.waits, job.endings, job.after_stall)
    explained, waits = context.settled, job.waits
    findings = divergence.find(context, known)
    findings += by_size.find(context)
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
    findings += watchdog.find(context)
    cycles = circular.circular_waits(job, explained)
    for wait in cycles:
        ranks = set(wait.ranks) if isinstance(wait, MissedCall) else set(wait.cycle.ranks)
        explained |= ranks | waits.reaching(ranks)
    if not cycles and job.stands_still():
        findings += unseen.find(context)
    device = late.device_stall(job, explained) if job.stands_still() else None
    if device is not None:
        explained |= set(device.ranks) | waits.reaching(device.ranks)
    host = late.late_hosts(job, explained) if job.stands_still() else None
    if host is not None:
        explained |= set(host.ranks if isinstance(host, HostStall) else host.others)
    stall = Stall(
        job,
        excluded=context.siblings,
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
    if not stall.confirmed and not any(one.status == "confirmed" for one in findings):
        findings += by_place.find(context)
    never_complete = tuple(blameless.never_complete(job, explained))
    explained |= {rank for stuck in never_complete for rank in stuck.ranks}
    return replace(
        stall,
        findings=tuple(findings),
        never_complete=never_complete,
        startup=blameless.startup(job),
        straggler=None if explained else straggler(job),
    )
