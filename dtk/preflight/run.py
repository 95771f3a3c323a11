"""A preflight from request to verdict: composes the job, simulates its ranks, and judges the outcome. In a job of
thousands of ranks one of each class is simulated. A class is a position at which code may branch: the first and last
rank of the job, of a node and of each mesh dimension, and every named rank.
"""

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from diagnostics.analysis.processes import usable_cores
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Group
from diagnostics.contract.grouping import grouped
from diagnostics.contract.mesh import Mesh
from dtk.config.compose import Composed
from dtk.config.placement import is_remote, ranks_per_node
from dtk.config.schema import Config, RankFault
from dtk.errors import DtkError
from dtk.plan.job import planned_job
from dtk.preflight.calls import Record
from dtk.preflight.job import play_job, simulated_config, warm_up
from dtk.preflight.pool import MOST_LIVE_RANKS, Body, Collected, simulate
from dtk.preflight.sandbox import play_script, simulate_rank
from dtk.preflight.verdict import NOBODY_WAITS, Verdict, Waiting, judge

STEPS = 3
"""An injected failure happens in the second step or at its end, so that the others have something to wait for."""
RESUME = "resume"


@dataclass(frozen=True, slots=True)
class InjectedFailure:
    """One way in which a single rank fails."""

    title: str
    fault: str
    """Name in `dtk.faults`; RESUME if the rank alone starts from a checkpoint."""
    step: int = 2


INJECTED_FAILURES = tuple(InjectedFailure(**row) for row in table_beside(__file__))


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of injecting one failure."""

    failure: InjectedFailure
    rank: int
    hangs: bool
    cause: str = ""
    where: Waiting = NOBODY_WAITS
    """Where most of the other ranks wait."""
    stands: str = ""
    skipped: str = ""
    """Why it was not tried."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A job that finishes, with failures to inject into rank 1, or into the only rank."""

    config: Config
    """The simulated configuration, with at least STEPS steps."""
    judged: Callable[..., Verdict]
    """Judges records as those of the whole job: `verdict.judge` with what is known of the job."""
    records: Mapping[int, Record]
    collected: Collected
    """Results of the simulated ranks."""
    local_size: int
    limit_s: float
    """Time limit of one rank."""
    reads: bool = False
    """Whether the model may read the results of collectives."""

    def inject(self, failure: InjectedFailure) -> Tried:
        """Simulate the job with a failure, unless only its author could inject it."""
        config, records, offers = self.config, self.records, self.collected.offers
        faulty_rank = min(1, len(records) - 1)
        if failure.fault == "unused_parameters" and config.model.architecture == "custom":
            return Tried(failure, faulty_rank, hangs=False, skipped="only you know which branch of your model")
        resumes, faulty = faulty_rank if failure.fault == RESUME else -1, config
        if failure.fault != RESUME:
            fault = RankFault(name=failure.fault, rank=faulty_rank, step=failure.step)  # type: ignore[arg-type]
            faulty = dataclasses.replace(config, fault=fault)
        run = partial(simulate_rank, world_size=len(records), steps=config.train.steps, limit_s=self.limit_s)
        sound = partial(run, play=play_job(config, self.local_size))
        failing = partial(run, play=play_job(faulty, self.local_size, resumes=resumes))
        if self.reads and len(records) == len(self.collected.records) <= MOST_LIVE_RANKS:
            whole = Collected()
            body: Body = lambda exchange: (failing if exchange.rank == faulty_rank else sound)(exchange)  # noqa: E731
            simulate(records, body, whole, 2, self.limit_s, live=True)
            verdict = self.judged(whole.records, source=failure.title, made_up=whole.made_up)
            return _tried(failure, faulty_rank, verdict)
        spreads = failure.fault == "nan_on_one_rank"
        of_faulty = Collected(offers=dict(offers), watches=spreads)
        simulate([faulty_rank], failing, of_faulty, 1, self.limit_s)
        changed = {**records, **of_faulty.records}
        if spreads:
            others = [rank for rank in self.collected.records if rank != faulty_rank]
            spread = Collected(offers=dict(offers))
            simulate(others, sound, spread, 2, self.limit_s, spoiled=of_faulty.spread)
            # Include the ranks that they represent, as equal programs stay equal.
            became = {id(records[rank].program): record for rank, record in spread.records.items()}
            for rank, record in records.items():
                if new := became.get(id(record.program)):
                    changed[rank] = dataclasses.replace(record, program=new.program, end=new.end, rounds=new.rounds)
            changed |= {**spread.records, **of_faulty.records}
        return _tried(failure, faulty_rank, self.judged(changed, source=failure.title))


def _tried(failure: InjectedFailure, rank: int, verdict: Verdict) -> Tried:
    waiting = [other for other, progress in verdict.outcome.progress.items() if progress.pending is not None]
    if verdict.report is None or not waiting:
        return Tried(failure, rank, hangs=False)
    roots = verdict.report.root_causes
    cause = roots[0].cause if roots else "undecided"
    return Tried(failure, rank, True, cause, where=verdict.waits(rank), stands=verdict.stands)


PROCESSES = 8  # Maximum number of ranks simulated at once, one per core of this machine.
_APART = ("pp", "cp")  # Dimensions with point-to-point calls between neighbours, so that each coordinate is a class.
Progress = Callable[[str], None]
ALL_UP_TO = 256  # Largest job of which every rank is simulated by default.
_ONE_RANK = Mesh()  # That of a script, which has no dimensions.
_DEFAULT = "0"  # torch's name of the group of all ranks; later groups have the following numbers.


@dataclass(frozen=True, slots=True)
class Request:
    """The user's request."""

    overrides: tuple[str, ...] = ()
    config_dir: Path | None = None
    script: Path | None = None
    script_arguments: tuple[str, ...] = ()
    world_size: int | None = None
    local_size: int = 8
    ranks: str = "auto"
    steps: int = 2
    what_if: bool = False
    limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """The job to simulate."""

    source: str
    """Name of the job in the report."""
    world_size: int
    body: Body
    mesh: Mesh | None = None
    """None for a script."""
    named: tuple[int, ...] = ()
    """Ranks that are configured by number."""
    config: Config | None = None
    """The simulated configuration; None for a script."""
    plain: dict[str, Any] = field(default_factory=dict)
    """The user's configuration."""
    note: str = ""
    reads: bool = False
    """Whether user code runs in it, which may read the results of collectives."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """The result of a preflight."""

    job: Job
    verdict: Verdict
    simulated: int
    """Number of simulated ranks; the others belong to the same classes."""
    steps: int
    seconds: float
    tried: tuple[Tried, ...] = ()
    """Failures that were injected one at a time; empty without --what-if."""


def preflight(request: Request, show: Progress | None = None, composed: Composed | None = None) -> Preflight:
    """Simulate the job's ranks and judge the outcome.

    `composed` is a run about to be launched, resolved for `request.world_size` ranks; None composes the requested job.
    DtkError if the job or script cannot be simulated.
    """
    note = ""
    if request.script is None and composed is None:
        composed = planned_job(list(request.overrides), request.config_dir, request.world_size)
        if is_remote(composed.config.launcher):  # It determines the ranks per node.
            local_size = ranks_per_node(composed.config.launcher, composed.config.strategy)
            request = dataclasses.replace(request, local_size=local_size)
        settled = " ".join(sorted({*composed.overrides} - {*request.overrides}))
        if settled and not composed.config.resume:
            note = f"The default batch cannot be split over these ranks: simulated, and to be run, with {settled}."
    began_s = time.monotonic()
    job = _script_job(request) if composed is None else _job(composed, request)
    job = dataclasses.replace(job, note=" ".join(filter(None, (note, job.note))))
    collected, records = simulate_all(job, request, show)
    steps = 0 if job.config is None else job.config.train.steps
    judged = partial(judge, plain=job.plain, mesh=job.mesh, steps=steps)
    verdict = judged(records, source=job.source, made_up=collected.made_up)
    tried: tuple[Tried, ...] = ()
    if request.what_if and job.config is not None and verdict.ends:
        what_if = WhatIf(job.config, judged, records, collected, request.local_size, request.limit_s, job.reads)
        tried = tuple(map(what_if.inject, INJECTED_FAILURES))
    return Preflight(job, verdict, len(collected.records), steps or request.steps, time.monotonic() - began_s, tried)


def _script_job(request: Request) -> Job:
    script, world_size, steps = request.script, request.world_size, request.steps
    assert script is not None and world_size is not None
    play = play_script(script, request.script_arguments, request.local_size)
    body = partial(simulate_rank, world_size=world_size, steps=steps, limit_s=request.limit_s, play=play)
    return Job(f"preflight of {script}, {world_size} ranks", world_size, body, reads=True)


def _job(composed: Composed, request: Request) -> Job:
    world_size = request.world_size or composed.config.launcher.world_size
    assert world_size is not None
    config = simulated_config(composed.config, max(request.steps, STEPS) if request.what_if else request.steps)
    warm_up(config, world_size, request.local_size)
    play, steps = play_job(config, request.local_size), config.train.steps
    rank = getattr(config.fault, "rank", None)
    return Job(
        source=f"preflight of {' '.join(request.overrides) or 'the default job'}, {world_size} ranks",
        world_size=world_size,
        body=partial(simulate_rank, world_size=world_size, steps=steps, limit_s=request.limit_s, play=play),
        mesh=config.mesh(world_size),
        named=() if rank is None else (rank,),
        config=config,
        plain=composed.plain,
        reads=config.model.architecture == "custom",
        note="" if config.model == composed.config.model else "The model's widths are reduced, its blocks are not.",
    )


def simulate_all(job: Job, request: Request, show: Progress | None) -> tuple[Collected, dict[int, Record]]:
    """Return the records of all ranks of the job, simulated or derived from a representative; DtkError if classes were
    requested, but ranks cannot represent each other.
    """
    world_size = job.world_size
    by_class = request.ranks == "classes" or (request.ranks == "auto" and world_size > ALL_UP_TO)
    stands_for = {rank: rank for rank in range(world_size)}
    if by_class:
        stands_for = representatives(world_size, request.local_size, job.mesh or Mesh(), job.named, _APART)
    chosen = sorted(set(stands_for.values()))
    collected = Collected()
    processes = min(PROCESSES, usable_cores())
    progress = (lambda done: show(f"{done} of {len(chosen)} ranks simulated")) if show else None
    live = job.reads and len(chosen) == world_size <= MOST_LIVE_RANKS
    simulate(chosen, job.body, collected, processes, request.limit_s, progress, live=live)
    if not live:
        collected.made_up = job.reads
    if not by_class:
        return collected, dict(sorted(collected.records.items()))
    if not replaceable(collected.records.values(), apart=job.mesh is not None):
        what = "ranks of one class are not equivalent here"
        raise DtkError(what, "they send to each other by number, or create their own groups", "use --ranks all")
    return collected, spread(collected.records, stands_for)


def representatives(
    world_size: int, local_size: int, mesh: Mesh = _ONE_RANK, named: Iterable[int] = (), apart: Collection[str] = ()
) -> dict[int, int]:
    """Return a mapping from every rank to the rank that is simulated for it.

    `named` ranks are configured by number, as a fault's; each coordinate of `apart` ones, as a pipeline's, is a class.
    """
    own = {0, world_size - 1, *named}
    first: dict[tuple[str, ...], int] = {}
    stands_for = {}
    for rank in range(world_size):
        places = [_place(rank % local_size, local_size)]
        for name in mesh.order:
            index = mesh.index(name, rank)
            places.append(str(index) if name in apart else _place(index, mesh.size(name)))
        stands_for[rank] = rank if rank in own else first.setdefault(tuple(places), rank)
    return stands_for


def _place(index: int, size: int) -> str:
    return "first" if index == 0 else "last" if index == size - 1 else "middle"


def spread(records: Mapping[int, Record], stands_for: Mapping[int, int]) -> dict[int, Record]:
    """Return the records of all ranks, derived from those that were simulated.

    A rank runs the program of its representative over the groups with the same indices among its own; the peer of a
    send is a rank in such a group.
    """
    common = next(iter(records.values())).new_groups
    belongs = grouped((rank, index) for index, (ranks, _) in enumerate(common) for rank in ranks)

    def same_place(group: Group, simulated: int, rank: int) -> Group:
        if group.name == _DEFAULT:
            return group
        if not group.name.isdecimal():  # It is created by its members alone, at the same offsets from them everywhere.
            ranks = tuple(member + rank - simulated for member in group.ranks)
            return Group(f"{group.desc} {ranks}", ranks, group.desc)
        index = belongs[rank][belongs[simulated].index(int(group.name) - 1)]
        return Group(str(index + 1), common[index][0], group.desc)

    programs = {}
    for rank, record in records.items():
        programs[rank] = program = record.program
        if any(len(entry.sent) > 1 or len(entry.taken) > 1 for entry in program.entries):
            # Sizes that differ by member: those of one rank do not determine another's.
            entries = tuple(entry._replace(sent=(), taken=()) for entry in program.entries)
            programs[rank] = replace(program, entries=entries)
    spread_out = {}
    for rank, other in sorted(stands_for.items()):
        groups = tuple(same_place(group, other, rank) for group in records[other].groups)
        spread_out[rank] = replace(records[other], rank=rank, program=programs[other], groups=groups, new_groups=common)
    return spread_out


def replaceable(records: Iterable[Record], apart: bool = False) -> bool:
    """Return whether one rank can represent another.

    `apart`: each coordinate is a class along dimensions with point-to-point calls; else no rank may send to a number.
    """
    simulated = list(records)
    for record in simulated:
        numbered = all(group.name.isdecimal() for group in record.groups)
        sent_in = {record.groups[entry.group].name for entry in record.program.entries if entry.p2p}
        if (
            record.new_groups != simulated[0].new_groups
            or not (apart or numbered)
            or (sent_in and not apart)
            or _DEFAULT in sent_in
        ):
            return False
    return True
