"""Ranks of which the log of a job that stands still has no line, or none that shows that they waited."""

import time
from collections.abc import Collection, Sequence
from math import inf
from typing import Any

from diagnostics.analysis.histories.watchdog_lines import GroupLog, is_after, stamp_s
from diagnostics.analysis.printed_steps import step_text
from diagnostics.analysis.symptoms.state import Waiting
from diagnostics.analysis.symptoms.waits import within
from diagnostics.analysis.vote import is_majority, is_minority
from diagnostics.contract.formatting import UNNAMED as NOBODY
from diagnostics.evidence.calls import ROOTED, TRANSFERS
from diagnostics.evidence.endings import Ending, of_error, of_srun
from diagnostics.evidence.model import Evidence, LogFact

_PHASES = ("START", "COMPLETE")  # Of NCCL's lines about the set-up of a communicator.
_SENT = {"SIGTERM", "SIGKILL"}  # Signals by which launchers and the kernel end a rank.


def silent(evidence: Evidence, groups: Sequence[GroupLog], waits: Sequence[Waiting]) -> tuple[int, ...]:
    """Return the ranks of the job without any line but of its steps, as far as its size is known."""
    printed = {fact.rank for fact in evidence.facts if fact.kind == "steps" and fact.rank is not None}
    spoke = {fact.rank for fact in evidence.facts if fact.kind != "steps"} | {error.rank for error in evidence.errors}
    spoke |= {dump.rank for dump in evidence.stacks}
    spoke = spoke.union(*(group.waits for group in groups), *(group.counters for group in groups))
    highest = max((rank for rank in spoke | printed if rank is not None), default=-1)
    # A job has at least as many ranks as any of its groups; one that is smaller than a rank's number tells nothing.
    sizes = (wait.members or 0 for wait in waits if (wait.members or 0) > highest)
    world = evidence.world_size or max(sizes, default=0)
    # If the size is unknown, most ranks up to the highest must have lines: the log of one node has those of few.
    world = world or (highest + 1 if is_majority(len((spoke | printed) - {None}), highest + 1) else 0)
    return tuple(sorted(printed.union(range(world)) - spoke))


def last_printed(evidence: Evidence, silent: Collection[int]) -> tuple[tuple[tuple[int, ...], str, str], ...]:
    """Return those of the silent ranks that printed steps, with the last one and its time (`HH:MM:SS`, or empty)."""
    steps = {fact.rank: fact.fields["steps"] for fact in evidence.facts if fact.kind == "steps" and fact.rank in silent}
    alike: dict[tuple[str, str], list[int]] = {}
    for rank, each in ((rank, steps[rank]) for rank in silent if rank in steps):
        last = max(each.series.values(), key=lambda series: len(series.lines), default=None)
        if last is not None and (step := step_text(last.step[-1])):
            at_s = last.at_s[-1]
            at = time.strftime("%H:%M:%S", time.gmtime(at_s)) if at_s == at_s else ""
            alike.setdefault((step, at), []).append(rank)
    return tuple((tuple(ranks), *at) for at, ranks in alike.items())


def without_lines(
    evidence: Evidence, groups: Sequence[GroupLog], waits: Sequence[Waiting], late: Sequence[int]
) -> dict[str, Any]:
    """Return the fields about ranks that torchrun does not list as failed, or lists without a line about their wait.

    `late` are those that only lost their peers. Most ranks without such a line may wait for each other in a group of
    their own, whose time is not up yet.
    """
    listed = {rank for fact in evidence.facts if fact.kind == "torchrun_list" for rank in fact.fields["ranks"]}
    placed = {rank for wait in waits if wait.site for rank in wait.ranks}
    unplaced = tuple(sorted(listed.union(late) - placed)) if placed else _outlived(evidence, groups)
    unplaced = unplaced if not placed or len(unplaced) <= len(placed) else ()
    rest = sorted({*range(min(listed, default=0), max(listed, default=0) + 1), *evidence.launched} - listed)
    is_sent = any(error.signal in _SENT for error in evidence.errors)  # The launcher or the kernel ended a rank.
    unlisted = () if is_sent or not is_minority(len(rest), len(listed)) else tuple(rest)
    return {"unlisted": unlisted, "without_report": unplaced}


def _outlived(evidence: Evidence, groups: Sequence[GroupLog]) -> tuple[int, ...]:
    """Return the few ranks that ended only after the watchdogs of all others had reported a timeout.

    They raised, or had to be killed: torchrun sends SIGKILL 30 s after SIGTERM, and Slurm when it ends the job. What
    waits as long as the others reports it by then.
    """
    reported = {rank for group in groups for rank in (*group.waits, *group.counters)}
    tasks = (end for fact in evidence.facts if fact.kind == "srun_task" for end in of_srun(fact))
    ended = {end.rank for end in (*evidence.errors, *tasks) if end.signal == "SIGKILL" and end.rank is not None}
    stamps = (stamp_s(wait.fact) for group in groups for wait in group.waits.values())
    first = min((at for at in stamps if at is not None), default=inf)
    for error in evidence.errors:
        at_s = error.after_s if error.time_s is None else error.time_s
        if error.type and error.rank is not None and at_s is not None and is_after(at_s, first):
            ended |= {error.rank} if of_error(error, error.rank).by_itself else set()
    late = tuple(sorted(ended - reported))
    return late if len(late) < len({rank for group in groups for rank in group.waits}) else ()


def possibly_late(victims: Sequence[Ending]) -> tuple[int, ...]:
    """Return the ranks that only lost their peers in the call in which those timed out. A call that all ranks make
    alike ends once they have all come, and a rank that times out closes its connections.
    """
    sites = within(victims)
    late = {end.rank for end in victims if end.kind == "lost_peer"} & sites.keys()
    ops = {op for op, _ in sites.values()}
    one_sided = len({*sites.values()}) > 1 or ops & (ROOTED | TRANSFERS) or late == sites.keys()
    return () if one_sided or NOBODY in sites else tuple(sorted(late))


def not_set_up(evidence: Evidence) -> tuple[str, tuple[int, ...], tuple[int, ...], list[LogFact]] | None:
    """Return (`complete` or `reach`, few ranks that did not, the others, lines) of NCCL's set-up of all ranks.

    A rank of whose set-up no line tells has to have other lines: the log may lack those of its node.
    """
    world, spoke = {*range(evidence.world_size or 0)}, {fact.rank for fact in evidence.facts}
    inits = [f for f in evidence.facts if f.kind == "nccl_init" and f.rank in (None, f.fields["comm_rank"])]
    for communicator in dict.fromkeys(fact.fields.get("comm_id") for fact in inits):
        same = (fact for fact in inits if fact.fields.get("comm_id") == communicator)
        facts = [fact for fact in same if fact.fields["nranks"] == len(world)]
        began, complete = ({f.fields["comm_rank"] for f in facts if f.fields["phase"] == phase} for phase in _PHASES)
        reached = complete or began
        missing = world - reached
        if missing and len(missing) < len(reached) and missing <= spoke | began:
            stage = "complete" if missing <= began else "reach"
            return stage, tuple(sorted(missing)), tuple(sorted(reached)), facts
    return None
