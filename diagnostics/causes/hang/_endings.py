"""What the four causes of ranks that ended first share: the finding and its sentences."""

import re
from dataclasses import replace

from diagnostics.analysis.stall.endings import FirstEndings, line
from diagnostics.analysis.stall.explain import Stall
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Finding, Remedy, Text, Where, worded
from diagnostics.contract.formatting import file_name, ranks_spoken, sentence, verb
from diagnostics.evidence.endings import UNNAMED, Ending, Kind, is_fault

_UNNAMED_CONFIDENCE = 0.8
_UNNAMED_DEVICE_CONFIDENCE = 0.45
"""A device's memory ran out in a process without a rank: that one rank differed from its peers is not shown, so it is a
suspicion beside those about what takes the memory."""
_CODE_1_CONFIDENCE = 0.7
"""An exit code of 1 without a traceback is mostly, not always, an exception of the rank's own."""
_CONFIDENCE = 0.95
_ABORT_CONFIDENCE = 0.7
"""What C++ code aborts for may be the fault of a peer."""
_WORKER = "/dtk/rank/worker.py"
"""In every traceback of a rank of dtk; what lies beside it is dtk's own."""
_REMEDIES = table_beside(__file__)


def _ended_first_text(
    finding: Finding, case: FirstEndings, world: int, is_dtk_run: bool, gave_up_at: Where | None
) -> Text:
    first = case.first
    names = tuple(end.rank for end in case.endings if end.rank != UNNAMED)
    who = sentence(ranks_spoken(names)) if names else "A process whose log does not name its rank"
    own = finding.where[0] if finding.where and case.last is None else None
    at = f" ({file_name(own.file)}:{own.line})" if own and own != gave_up_at else _parts.after(case.last, names)
    step = f" in step {finding.step}" if finding.step is not None else ""
    while_others = " while others still waited" if first.in_order else ""
    ended = f"raised {first.what}"
    if case.kind == "oom":
        ended = f"ran out of memory: {first.what}"
    elif case.kind == "killed":
        ended = (
            f"{verb(names or (0,), 'was', 'were')} killed by {first.what}"
            if first.signal
            else f"vanished: {first.what}"
        )
    elif first.in_order:
        ended = "ended in order with exit code 0"
    elif first.only_exit_code:
        ended = f"ended with {first.what} without a traceback"
    summary = f"{who} {ended}{at}{step}{while_others}."
    victims = tuple(rank for rank in finding.victims if rank not in names)
    if case.model == "rank 0":
        summary += f" All of {ranks_spoken(names)} raised the same: it is the model of rank 0 that differs."
    elif case.model == "tie":
        summary += " Of two ranks it cannot be told which has the wrong model."
    elif victims:
        there = f" at {file_name(gave_up_at.file)}:{gave_up_at.line}" if gave_up_at else ""
        summary += f" {sentence(ranks_spoken(victims))} waited for {verb(names, 'it', 'them')}{there}."
    return Text(
        summary=summary,
        measured=f"{len(names) or 1} of {max(world, len(names), 1)} ranks",
        missing="" if names else "which rank it was: torchrun --log-dir=logs --redirects=3 ...",
        remedies=remedies(case.kind, first, finding.where, is_dtk_run, gave_up_at),
    )


def _aborted_text(finding: Finding, abort: Ending, waiting: tuple[int, ...], world: int, is_dtk_run: bool) -> Text:
    return Text(
        summary=(
            f"{sentence(ranks_spoken(finding.ranks))} aborted ({abort.what}); {ranks_spoken(waiting)} "
            f"{verb(waiting, 'waits', 'wait')}."
        ),
        measured=f"{len(finding.ranks)} of {world} ranks left no dump",
        remedies=remedies("killed", None, (), is_dtk_run),
    )


def decide(stall: Stall, kind: Kind) -> list[Finding]:
    """Return the finding about ranks that ended first in this way, or why the cause is not confirmed."""
    cause = f"hang.rank_{kind}"
    case = next((case for case in stall.endings if case.kind == kind), None)
    if case is not None:
        return [_finding(stall, case)]
    missing = stall.missing
    if kind != "killed" or missing is None or missing.abort is None:
        return [unconfirmed(stall, cause)]
    job, waits = stall.job, dict.fromkeys(missing.waiting[:2], "waits for a rank without a dump")
    return [
        Finding(
            cause=cause,
            status="confirmed",
            facts=worded(
                _aborted_text,
                abort=missing.abort,
                waiting=missing.waiting,
                world=job.world(),
                is_dtk_run=job.is_dtk_run,
            ),
            confidence=_ABORT_CONFIDENCE,
            ranks=missing.ranks,
            victims=tuple(rank for rank in missing.waiting if rank not in missing.ranks),
            cost=job.cost(),
            evidence=(missing.abort.evidence, *_parts.dumps(job.survey, waits)),
        )
    ]


def _finding(stall: Stall, case: FirstEndings) -> Finding:
    job, first = stall.job, case.first
    own = tuple(place for end in case.endings[:4] for place in _place(end))
    last = _parts.last_places(case.last)
    gave_up = _place(case.gave_up) if case.gave_up else ()
    gave_up_at = replace(gave_up[0], does="waits here") if gave_up else None
    shown = own or last
    step = next((end.step for end in case.endings if end.step is not None), None)
    if step is None and last:
        step = job.step_of(case.endings[0].rank)
    confidence = _CONFIDENCE
    if case.model:
        confidence = 0.9
    elif not case.culprits:
        on_device = case.kind == "oom" and first.signal is None and not first.detail
        confidence = _UNNAMED_DEVICE_CONFIDENCE if on_device else _UNNAMED_CONFIDENCE
    elif case.kind == "raised" and first.only_exit_code:
        confidence = _CODE_1_CONFIDENCE
    beside = gave_up_at and gave_up_at.rank not in {place.rank for place in shown}
    return Finding(
        cause=f"hang.rank_{case.kind}",
        status="confirmed",
        facts=worded(_ended_first_text, case=case, world=job.world(), is_dtk_run=job.is_dtk_run, gave_up_at=gave_up_at),
        confidence=confidence,
        ranks=case.culprits,
        victims=case.victims,
        step=step,
        where=(*shown, *((gave_up_at,) if gave_up_at and beside else ())),
        cost=job.cost(),
        evidence=(
            *(end.evidence for end in case.endings[:6]),
            *(_parts.dumps(job.survey, {last[0].rank: last[0].does}) if last and last[0].rank is not None else ()),
        ),
    )


def _place(ending: Ending) -> tuple[Where, ...]:
    return _parts.where(ending.rank if ending.rank != UNNAMED else None, line(ending), ending.what)


def remedies(
    kind: Kind, end: Ending | None, where: tuple[Where, ...], is_dtk_run: bool, gave_up_at: Where | None = None
) -> tuple[Remedy, ...]:
    """How to fix it.

    Args:
        kind: of the ending.
        end: of the first culprit; None where only an abort is known.
        where: of the finding.
        is_dtk_run: whether overrides apply.
        gave_up_at: where a victim lost a rank that ended in order.
    """
    at, entry = f"{where[0].file}:{where[0].line}" if where else "", _REMEDIES["kinds"][kind]
    detail = _detail(kind, end) if end is not None else ""
    known = (text for text in _REMEDIES["texts"] if end is not None and end.type and re.search(text["text"], end.what))
    override: tuple[Remedy, ...] = ()
    if detail in _REMEDIES["details"]:
        entry = _REMEDIES["details"][detail]
    elif kind == "raised" and (text := next(known, None)) is not None:
        entry = text
    elif kind == "oom" and is_dtk_run:
        override = (Remedy("override", "train.micro_batch_size=1", "activations shrink with the micro-batch"),)
    one_more = ""
    if gave_up_at:
        one_more = (
            f"; if its work was done, rank {gave_up_at.rank} calls one more at {gave_up_at.file}:{gave_up_at.line}: "
            "let all ranks call it, or none"
        )
    parts = {
        "at": at or "the place in its log",
        "native": at or "the place that a core dump shows",
        "what": end.what if end is not None else "",
        "after": f", after {at}" if at else "",
        "aside": f"; {at} is only where it came up" if at else "",
        "one_more": one_more,
    }
    return (*override, Remedy("code", entry["change"].format_map(parts), entry["why"].format_map(parts)))


def _detail(kind: Kind, end: Ending) -> str:
    """Return what more is known of an ending than its kind, as the table names it."""
    if end.only_exit_code:
        return "exit_code"
    if end.signal in ("SIGKILL", "SIGBUS") and end.detail not in _REMEDIES["details"]:
        return end.signal.lower()
    if is_fault(end.signal):
        return "native_fault"
    if end.detail in _REMEDIES["details"]:
        return end.detail
    if end.signal == "SIGINT":
        return "interrupted"
    # Raised in a rank of dtk, and on no line of the user's own: nobody is to change dtk's lines.
    root = next((frame.file.removesuffix(_WORKER) for frame in end.frames if frame.file.endswith(_WORKER)), None)
    frame = line(end)
    own = frame is not None and (
        not frame.file.startswith(f"{root}/dtk/") or frame.file.startswith(f"{root}/dtk/faults/")
    )
    return "raised_in_dtk" if kind == "raised" and root is not None and not own else ""
