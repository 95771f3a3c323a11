"""Injects faults of `dtk.faults` into one rank of a job that would finish, and finds which leave other ranks waiting.

The records of the other ranks are available. They are simulated again if NaN spreads, and always if the model may
read values.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from diagnostics.contract.files import table_beside
from dtk.config.schema import Config, RankFault
from dtk.preflight.calls import Record
from dtk.preflight.job import play_job
from dtk.preflight.pool import MOST_LIVE_RANKS, Body, Collected, simulate
from dtk.preflight.sandbox import simulate_rank
from dtk.preflight.verdict import NOBODY_WAITS, Verdict, Waiting

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
