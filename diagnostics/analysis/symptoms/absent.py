"""Ranks of which the log of a job that stands still has no line, or none that shows that they waited."""

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from math import inf
from typing import Any

from msgspec import Struct

from diagnostics.analysis.histories.watchdog_lines import GroupLog, is_after, stamp_s
from diagnostics.analysis.printed_steps import step_text
from diagnostics.analysis.symptoms.state import Waiting
from diagnostics.analysis.symptoms.waits import within
from diagnostics.analysis.vote import is_majority, is_minority
from diagnostics.contract.formatting import UNNAMED as NOBODY
from diagnostics.evidence.calls import ROOTED, TRANSFERS
from diagnostics.evidence.endings import Ending, of_error, of_srun
from diagnostics.evidence.model import Evidence, LogFact

_STAGES = (
    "Init START", "Bootstrap timings", "Setting affinity", "Trees", "Channel .. via", "Connected all rings",
    "Connected all trees", "Init COMPLETE",
)  # fmt: skip
"""What NCCL prints while it sets up a communicator. Connections may also follow, at the first collective."""
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

    `late` only lost their peers. Most ranks without such a line may wait in a group of their own, whose time is not up.
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


class SetUp(Struct, frozen=True):
    """How far the ranks got in the set-up of an NCCL communicator."""

    comm: str
    """The id of the communicator; empty if NCCL is too old to print it."""
    row: str
    """Who did not `complete` or `reach` a stage or is `behind`; of whom the logs have no line (`alone`: the others may
    wait for them, `met`: they came); or `together`."""
    stage: str
    """What the `others` printed and `ranks` did not; without those, the last stage that all printed."""
    ranks: tuple[int, ...]
    """The few that are behind the others, or have no line."""
    others: tuple[int, ...]
    reached: str
    """The last stage in a line of `ranks`; empty if they printed none."""
    lines: tuple[LogFact, ...]

    @property
    def blames(self) -> bool:
        """Whether the ranks have lines, so that theirs are not in another log."""
        return self.row in ("complete", "reach", "behind")

    @property
    def is_complete(self) -> bool:
        """Whether these ranks only lack connections, which NCCL may make when they come to a collective."""
        return self.reached == _STAGES[-1]


def set_up(evidence: Evidence) -> SetUp | None:
    """Return the set-up of the first communicator in which few ranks are behind, else of the last incomplete one.

    A rank of whose set-up no line tells has to have other lines: the log may lack those of its node.
    """
    world, spoke, incomplete = evidence.world_size or 0, {fact.rank for fact in evidence.facts}, None
    printed = defaultdict[tuple[str, object], list[LogFact]](list)
    for fact in (fact for fact in evidence.facts if fact.kind in ("nccl_stage", "nccl_transport")):
        printed[fact.file, fact.fields.get("process")].append(fact)
    communicators = defaultdict[tuple[str, int], list[LogFact]](list)
    for fact in (fact for fact in evidence.facts if fact.kind == "nccl_init"):
        communicators[fact.fields.get("comm_id", ""), fact.fields["nranks"]].append(fact)
    for (comm, nranks), inits in communicators.items():
        reached = defaultdict[int, list[LogFact]](list)
        for init in inits:
            rank = init.fields["comm_rank"] if nranks == world else init.rank
            if rank is not None and init.rank in (None, rank):
                lines = printed[init.file, init.fields.get("process")]
                reached[rank] += [init, *(fact for fact in lines if fact.fields.get("last", fact).line > init.line)]
        members = {*range(world)} if nranks == world else {*reached}
        # Beyond the first stage each rank needs all others: then the lines of one without any are elsewhere.
        met = any(_stage(fact) for facts in reached.values() for fact in facts)
        silent = tuple(sorted(members - reached.keys() - (set() if met else spoke)))
        for at, stage in reversed([*enumerate(_STAGES)]):
            have = {rank: fact for rank in sorted(reached) for fact in reached[rank] if _passed(fact, at)}
            late = tuple(sorted(members - have.keys()))
            if late and len(late) < len(have) and not silent and at in map(_stage, have.values()):
                last = max((fact for rank in late for fact in reached[rank]), key=_stage, default=None)
                is_short = last is None or (_stage(last), at) == (0, len(_STAGES) - 1)
                row = "behind" if not is_short else "complete" if last else "reach"
                cited = (*([last] if last else []), *have.values())[:2]
                return SetUp(comm, row, stage, late, tuple(have), _STAGES[_stage(last)] if last else "", cited)
        common = min((max(map(_stage, facts)) for facts in reached.values()), default=len(_STAGES) - 1)
        if common < len(_STAGES) - 1:
            few = silent if len(silent) < len(reached) else ()
            row = "together" if not few else "met" if met else "alone"
            incomplete = SetUp(comm, row, _STAGES[common], few, tuple(sorted(reached)), "", (inits[0], inits[-1]))
    return incomplete


def _passed(fact: LogFact, at: int) -> bool:
    """Return whether a line shows that its rank has passed a stage, which not every rank and version prints.

    A communicator that is complete may still have no connections.
    """
    own, last = _stage(fact), len(_STAGES) - 1
    return own >= at and (own < last or at == last or at <= _STAGES.index("Trees"))


def _stage(fact: LogFact) -> int:
    """Return the position of a line in the set-up."""
    of_kind = {"nccl_init": f"Init {fact.fields.get('phase')}", "nccl_transport": "Channel .. via"}
    return _STAGES.index(of_kind.get(fact.kind) or fact.fields["stage"])
