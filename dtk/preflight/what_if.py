"""Mishaps on one rank, each tried on a job that ends by itself: which of them would leave the other ranks waiting?

The mishaps are the faults of `dtk.faults`, put into one rank; the records of the others are at hand already. A value
that is not a number spreads, so there the others are simulated again with it, and with a model that may read values
always.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from dtk.config.schema import Config, RankFault
from dtk.preflight.calls import Record
from dtk.preflight.job import play_job
from dtk.preflight.pool import MOST_LIVE_RANKS, Body, Collected, simulate
from dtk.preflight.sandbox import simulate_rank
from dtk.preflight.verdict import Verdict, judge

STEPS = 3
"""A mishap happens in the second step or at its end, so that the others have something to wait for."""
RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Mishap:
    """Something that goes wrong on one rank."""

    title: str
    fault: str
    """Of `dtk.faults`; RESUME = that rank alone starts from a checkpoint."""
    step: int = 2


MISHAPS = (
    Mishap("its data is a batch short", "uneven_batches", step=STEPS),
    Mishap("its batch leaves a branch unused", "unused_parameters"),
    Mishap("its loss is not a number", "nan_on_one_rank"),
    Mishap("it raises an exception", "exception"),
    Mishap("it stops early", "early_stop", step=STEPS),
    Mishap("it alone resumes from a checkpoint", RESUME),
)


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one mishap."""

    mishap: Mishap
    rank: int
    hangs: bool
    cause: str = ""
    where: str = ""
    """The call and `file:line` at which the others wait."""
    stands: str = ""
    skipped: str = ""
    """Why it was not tried."""


def try_all(
    config: Config,
    plain: Mapping[str, object],
    records: Mapping[int, Record],
    collected: Collected,
    local_size: int,
    limit_s: float,
    *,
    reads: bool = False,
) -> tuple[Tried, ...]:
    """Try every mishap on rank 1, or on the only rank.

    Args:
        config: as it was simulated, STEPS steps at least.
        plain: as the user configured it.
        records: of all ranks; the job ends.
        collected: of the simulated ones.
        local_size: ranks per node.
        limit_s: of one rank.
        reads: whether the model may read what collectives return.
    """
    rank = min(1, len(records) - 1)
    together = reads and len(records) == len(collected.records) <= MOST_LIVE_RANKS
    return tuple(_try(one, config, plain, records, collected, rank, local_size, limit_s, together) for one in MISHAPS)


def _try(
    mishap: Mishap,
    config: Config,
    plain: Mapping[str, object],
    records: Mapping[int, Record],
    collected: Collected,
    rank: int,
    local_size: int,
    limit_s: float,
    together: bool,
) -> Tried:
    if mishap.fault == "unused_parameters" and config.model.architecture == "custom":
        return Tried(mishap, rank, hangs=False, skipped="which branch of your model, only you can say")
    world_size, steps = len(records), config.train.steps
    faulty = config
    if mishap.fault != RESUME:
        faulty = dataclasses.replace(config, fault=RankFault(name=mishap.fault, rank=rank, step=mishap.step))  # type: ignore[arg-type]
    play = play_job(faulty, local_size, resumes=rank if mishap.fault == RESUME else -1)
    simulated = partial(simulate_rank, world_size=world_size, steps=steps, limit_s=limit_s)
    usual = play_job(config, local_size)
    if together:
        whole = Collected()
        body: Body = lambda one: simulated(one, play=play if one.rank == rank else usual)  # noqa: E731
        simulate(records, body, whole, 2, limit_s, live=True)
        return _tried(mishap, rank, judge(whole.records, plain, mishap.title, made_up=whole.made_up))
    spreads = mishap.fault == "nan_on_one_rank"
    found = Collected(known=dict(collected.known), watches=spreads)
    simulate([rank], partial(simulated, play=play), found, 1, limit_s)
    changed = {**records, **found.records}
    if spreads:
        others = [one for one in collected.records if one != rank]
        spread = Collected(known=dict(collected.known))
        simulate(others, partial(simulated, play=usual), spread, 2, limit_s, spoiled=found.spread)
        changed |= _alike(records, spread.records)
    return _tried(mishap, rank, judge(changed, plain, mishap.title))


def _alike(records: Mapping[int, Record], changed: Mapping[int, Record]) -> dict[int, Record]:
    """Return the new records of the simulated ranks and of those they stand for, as equal programs stay equal."""
    became = {id(records[rank].program): record for rank, record in changed.items()}
    return {
        rank: changed.get(rank) or _as(record, became[id(record.program)])
        for rank, record in records.items()
        if rank in changed or id(record.program) in became
    }


def _as(record: Record, other: Record) -> Record:
    """Return the record of a rank with the program and the end of the rank that stands for it."""
    return dataclasses.replace(record, program=other.program, end=other.end, rounds=other.rounds)


def _tried(mishap: Mishap, rank: int, verdict: Verdict) -> Tried:
    waiting = [one for one, standing in verdict.outcome.standings.items() if standing.pending is not None]
    if verdict.report is None or not waiting:
        return Tried(mishap, rank, hangs=False)
    roots = verdict.report.root_causes
    return Tried(
        mishap,
        rank,
        hangs=True,
        cause=roots[0].cause if roots else "undecided",
        where=verdict.waits(rank),
        stands=verdict.stands,
    )
