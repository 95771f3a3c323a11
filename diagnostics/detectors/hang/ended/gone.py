"""Ranks that are gone: an exception, memory that ran out, a signal, an exit while others wait; and DDP's own word.

Says who went first. Errors that only speak of a lost peer belong to victims.
"""

from collections import defaultdict
from dataclasses import replace

from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Where
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.ended import early_end, last_seen, one_more, other_model, remedies
from diagnostics.detectors.hang.waiting import idle
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.endings import UNNAMED, Ending, is_fault
from diagnostics.evidence.model import shortened
from diagnostics.evidence.rank_endings import peer_vanished

_CAUSE = {
    "raised": "hang.rank_raised",
    "oom": "hang.rank_oom",
    "killed": "hang.rank_killed",
    "exited": "hang.rank_exited",
}
_DDP_UNUSED = {"ddp_unused", "ddp_unused_names", "ddp_unused_indices"}


def find(context: Context) -> list[Finding]:
    """Confirmed ends, one finding for each manner."""
    by_manner: dict[str, list[Ending]] = defaultdict(list)
    for rank in sorted(context.ends):
        end = context.ends[rank]
        if end.by_itself:
            by_manner[end.kind].append(end)
    found = _unused(context)
    for manner, cause in _CAUSE.items():
        ends = by_manner[manner]
        if ends and _left_somebody(context, manner, ends):
            found.append(_finding(context, cause, ends))
            if all(end.detail == "model_differs" for end in ends):
                found[-1] = other_model.settle(context, found[-1])
            if all(end.in_order for end in ends):
                found += one_more.find(context, found[-1]) or early_end.find(context, found[-1])
            context.settled |= {end.rank for end in ends}
            context.settled |= context.waits.reaching(end.rank for end in ends)
    if not any(by_manner.values()):
        found += _left(context) or _vanished(context)
    return found


def _left_somebody(context: Context, manner: str, ends: list[Ending]) -> bool:
    """A normal exit is a cause only if others wait; an exception or a signal ends the job in any case."""
    if context.finished():
        return False
    if manner != "exited" or not all(end.in_order for end in ends):
        return True
    gone = {end.rank for end in ends}
    others = set(range(context.world())) - gone
    lost = {rank for rank, end in context.ends.items() if end.victim or end.kind == "aborted"}
    return bool(others) and bool(gone & context.waits.waited_for() or lost - gone)


def _finding(context: Context, cause: str, ends: list[Ending]) -> Finding:
    ranks = tuple(end.rank for end in ends if end.rank != UNNAMED)
    first = ends[0]
    lost = {rank for rank, end in context.ends.items() if not end.by_itself} | context.reported_victims()
    victims = tuple(sorted((context.waits.reaching(ranks) | lost) - set(ranks))) if ranks else ()
    where = tuple(place for end in ends[:4] for place in _place(end))
    last = last_seen.where(context, ranks[0]) if ranks and not where else ()
    step = next((end.step for end in ends if end.step is not None), None)
    if step is None and last:
        step = context.step_of(ranks[0])
    at = f" ({say.short(where[0].file)}:{where[0].line})" if where else last_seen.after(context, ranks)
    told = where or last
    meets = _still_waits(context, victims) if first.in_order else None
    return Finding(
        cause=cause,
        status="confirmed",
        summary=_summary(cause, first, ranks, at, step, victims, meets),
        confidence=0.8 if not ranks else 0.7 if cause == "hang.rank_raised" and first.only_exit_code else 0.95,
        ranks=ranks,
        victims=victims,
        step=step,
        where=(*told, *(one for one in (meets,) if one and one.rank not in {place.rank for place in told})),
        cost=context.cost(),
        evidence=(
            *(end.evidence for end in ends[:6]),
            *(say.flight(context.survey, {ranks[0]: last[0].does}) if last else ()),
        ),
        remedies=_remedies(context, cause, told, first, meets),
        measured=f"{len(ranks) or 1} of {max(context.world(), len(ranks), 1)} ranks",
    )


def _summary(
    cause: str,
    first: Ending,
    ranks: tuple[int, ...],
    at: str,
    step: int | None,
    victims: tuple[int, ...],
    meets: Where | None,
) -> str:
    what = {
        "hang.rank_raised": f"ended with {first.what} without a traceback"
        if first.only_exit_code
        else f"raised {first.what}",
        "hang.rank_oom": f"ran out of memory: {first.what}",
        "hang.rank_killed": f"{say.verb(ranks, 'was', 'were')} killed by {first.what}"
        if first.signal
        else f"{say.verb(ranks, 'is', 'are')} gone: {first.what}",
        "hang.rank_exited": "ended in order with exit code 0"
        if first.in_order
        else f"ended with {first.what} without a traceback",
    }[cause]
    who = say.sentence(say.ranks(ranks)) if ranks else "A process whose log does not say its rank"
    in_step = f" in step {step}" if step is not None else ""
    summary = f"{who} {what}{at}{in_step}{' while others still waited' * first.in_order}."
    if not victims:
        return summary
    there = f" at {say.short(meets.file)}:{meets.line}" if meets else ""
    return f"{summary} {say.sentence(say.ranks(victims))} waited for {say.verb(ranks, 'it', 'them')}{there}."


def _still_waits(context: Context, victims: tuple[int, ...]) -> Where | None:
    """The program's line at which a rank lost its peer, by its traceback."""
    found = (_place(context.ends[rank]) for rank in victims if rank in context.ends)
    place = next((places[0] for places in found if places), None)
    return replace(place, does="waits here") if place else None


def _left(context: Context) -> list[Finding]:
    """Connections broke though nobody timed out, and nothing says how the ranks that all wait for ended."""
    if context.finished() or not peer_vanished(context.evidence, context.ends):
        return []
    roots = tuple(rank for rank in context.waits.roots() if rank not in context.ends and rank not in context.settled)
    if not roots or any(context.silent(rank) for rank in roots):
        return []
    rest = sorted(context.waits.reaching(roots) - set(roots))
    context.settled |= {*roots, *rest}
    summary = (
        f"{say.sentence(say.ranks(roots))} went away{last_seen.after(context, roots)} while {say.ranks(rest)} still "
        f"waited, and nothing says how: {say.verb(roots, 'it', 'they')} exited or "
        f"{say.verb(roots, 'was', 'were')} killed."
    )
    missing = "the launcher's log, which names exit codes and signals"
    causes = ("hang.rank_exited", "hang.rank_killed", "hang.rank_raised")
    return [
        replace(say.undecided(cause, summary, missing, rest), where=last_seen.where(context, roots[0]))
        for cause in causes
    ]


def _place(end: Ending) -> list[Where]:
    frame = next((frame for frame in end.frames if not is_library(frame.file)), None)
    rank = end.rank if end.rank != UNNAMED else None
    return [Where(rank, frame.file, frame.line, frame.function, end.what)] if frame is not None else []


def _remedies(
    context: Context, cause: str, where: tuple[Where, ...], end: Ending | None, meets: Where | None = None
) -> tuple[Remedy, ...]:
    if end is not None and (end.only_exit_code or is_fault(end.signal)):
        return _own_end(context, where, end)
    at = f"{where[0].file}:{where[0].line}" if where else "the place in its log"
    if end is not None and (found := remedies.special(context, at, end)):
        return found
    if cause == "hang.rank_raised":
        return say.remedies(
            context.evidence,
            f"mend the error at {at}; if a batch may be skipped, let all ranks skip it together",
            "its peers wait for collectives that it never reaches",
        )
    if cause == "hang.rank_oom":
        return say.remedies(
            context.evidence,
            f"lower what this rank holds at {at}: smaller micro-batch, sharding, checkpointing",
            "one rank that runs out of memory stops all",
            ("train.micro_batch_size=1", "activations shrink with the micro-batch"),
        )
    if cause == "hang.rank_killed":
        return say.remedies(
            context.evidence,
            "look into dmesg and the scheduler's log of that node for who sent the signal",
            "SIGKILL mostly comes from the kernel when memory runs out, or from the scheduler",
        )
    or_else = ""
    if meets:
        line = f"{meets.file}:{meets.line}"
        or_else = f"; if its work was done, rank {meets.rank} calls one more at {line}: let all ranks call it, or none"
    return say.remedies(
        context.evidence,
        f"let all ranks decide together when to stop (all_reduce a stop flag){or_else}",
        "a rank that ends by itself leaves the others in their next collective",
    )


def _own_end(context: Context, where: tuple[Where, ...], end: Ending) -> tuple[Remedy, ...]:
    """The process ended itself, by an exit code or a fault of its own."""
    if end.only_exit_code:
        after = f", after {where[0].file}:{where[0].line}" if where else ""
        return say.remedies(
            context.evidence,
            f"find what ends this process with {end.what} (sys.exit, os._exit, or exit() in a library){after}; let all "
            "ranks decide together when to stop",
            "it left no traceback, so no exception that Python saw ended it",
        )
    at = f"{where[0].file}:{where[0].line}" if where else "the place that a core dump shows"
    return say.remedies(
        context.evidence,
        f"look at the native code behind {at} (extension, ctypes, driver): faulthandler and a core dump name it",
        f"{end.what} is a fault of the program itself; nobody sent it",
    )


def _unused(context: Context) -> list[Finding]:
    """DDP itself says that gradients were missing."""
    facts = [fact for fact in context.evidence.facts if fact.kind in _DDP_UNUSED]
    if not facts:
        return []
    stated = [fact.fields.get("stated", fact.rank) for fact in facts]
    ranks = tuple(sorted({rank for rank in stated if isinstance(rank, int)}))
    context.settled |= set(ranks) | context.waits.reaching(ranks)
    victims = set(range(context.world())) - set(ranks)
    names = next((str(fact.fields["names"]) for fact in facts if "names" in fact.fields), "")
    who = say.sentence(say.ranks(ranks)) if ranks else "A rank"
    return [
        Finding(
            cause="hang.unused_parameters",
            status="confirmed",
            summary=(
                f"{who} ran backward without a gradient for some "
                f"parameters{f' ({shortened(names, 120)})' if names else ''}, so DDP could not finish its reduction."
            ),
            confidence=0.95,
            ranks=ranks,
            victims=tuple(sorted(victims)),
            where=tuple(place for rank in ranks[:2] if rank in context.ends for place in _place(context.ends[rank])),
            cost=context.cost(),
            evidence=tuple(EvidenceItem("log", fact.file, fact.text, fact.line) for fact in facts[:4]),
            remedies=say.remedies(
                context.evidence,
                "let every parameter take part in the loss, or set find_unused_parameters=True in DDP",
                "DDP reduces a bucket only when all its gradients are ready",
                ("strategy.find_unused_parameters=true", "DDP then marks parameters without a gradient as ready"),
            ),
            measured=f"{len(facts)} messages of DDP",
        )
    ]


def _vanished(context: Context) -> list[Finding]:
    """Everybody who left a dump waits for ranks that left none: an abort if their logs say so, else it stays open."""
    if not context.stands_still():
        return []
    if any(not set(cycle.ranks) & context.settled for cycle in context.waits.cycles()):
        return []  # Ranks that are there wait for each other, whatever became of the others.
    roots = [rank for rank in context.waits.roots() if rank not in context.settled]
    silent = tuple(rank for rank in roots if context.silent(rank))
    if not silent or len(silent) != len(roots) or 2 * len(silent) > context.world():
        return []
    context.settled |= (set(silent) | context.waits.reaching(silent)) - set(idle.lagging(context))
    aborted = [context.ends[rank] for rank in silent if rank in context.ends and context.ends[rank].gone]
    rest = sorted(context.waits.reaching(silent))
    if not aborted:
        return _without_dumps(context, silent, rest)
    return [
        Finding(
            cause="hang.rank_killed",
            status="confirmed",
            summary=f"{say.sentence(say.ranks(silent))} aborted ({aborted[0].what}); {say.ranks(rest)} wait.",
            confidence=0.7,
            ranks=silent,
            victims=tuple(rank for rank in rest if rank not in silent),
            cost=context.cost(),
            evidence=say.flight(context.survey, dict.fromkeys(rest[:2], "waits for a rank without a dump")),
            remedies=_remedies(context, "hang.rank_killed", (), None),
            measured=f"{len(silent)} of {context.world()} ranks left no dump",
        )
    ]


def _without_dumps(context: Context, silent: tuple[int, ...], rest: list[int]) -> list[Finding]:
    """A file that is missing or damaged says nothing about its rank: it may be gone, stuck, or waiting as well."""
    damaged = [problem.file for problem in context.evidence.problems if problem.kind == "flight"]
    summary = (
        f"{say.sentence(say.ranks(rest))} {say.verb(rest, 'waits', 'wait')} for {say.ranks(silent)}, of "
        f"{say.verb(silent, 'which', 'whom')} there is no dump that can be read"
        + (f" (damaged: {', '.join(damaged[:4])})" if damaged else "")
        + ": killed, stuck, or in another call than its peers."
    )
    missing = f"the dump, stack or log of {say.ranks(silent)}"
    causes = ("hang.rank_killed", "hang.host_stall", "hang.collective_mismatch", "hang.conditional_collective")
    return [say.undecided(cause, summary, missing, rest) for cause in causes]
