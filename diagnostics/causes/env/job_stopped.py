"""The job was stopped externally: a closed terminal, the scheduler's time limit or preemption, or a failed node."""

from math import inf

from msgspec.structs import replace

from diagnostics.analysis.environment.job import JobEnvironment, job_environment
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import CITED, LEVEL, OPEN, EvidenceItem, Finding, confirmed
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.endings import is_interrupt, is_victim, kind_of_exception, of_error, signal_name
from diagnostics.evidence.model import LogFact, RankError

_TEXTS, TABLE = Texts(__file__), table_beside(__file__)
_REASONS, _AFTER_TROUBLE, _AFTER_LOST_NODE = TABLE["reasons"], {*TABLE["after_trouble"]}, {*TABLE["after_lost_node"]}


def _reason(fact: LogFact) -> str:
    number = fact.fields.get("number")
    signal = signal_name(number) if isinstance(number, int) else fact.fields.get("signal")
    return str(signal or fact.fields.get("why"))


def _sure(reason: str) -> float:
    return LEVEL.get(_REASONS[reason].get("confidence"), 0.0)


def _open(reason: str, item: EvidenceItem) -> Finding:
    """Return the undecided finding that the job was stopped externally, for an unknown reason."""
    words = {name: _REASONS[reason][name] for name in ("summary", "change")}
    return replace(_TEXTS.undecided("by_whom", **words), evidence=(item,))


def _of_ranks(job: JobEnvironment) -> Finding | None:
    """Decide from exceptions by which ranks report a signal; None if there are none, or a failure may be its reason.

    A launcher sends the same signal to the other ranks when one has failed, wherever its line is in the log.
    """
    raised = [error for error in job.errors if error.type]
    stopped = [e for e in raised if kind_of_exception(e.type, e.message, e.frames) == "stopped"]
    if (
        not stopped
        or len(stopped) < len(raised)
        or any(fact.kind in {*_AFTER_TROUBLE, "torchrun_signal"} for fact in job.log)
    ):
        return None
    items = tuple(of_error(e, UNNAMED if e.rank is None else e.rank).evidence for e in stopped[:CITED])
    if any(map(is_interrupt, stopped)):
        return _open("SIGINT", items[0])
    facts = _TEXTS.facts(reason="SIGTERM", silence=None, **_REASONS["SIGTERM in ranks"])
    return confirmed(facts=facts, confidence=_sure("SIGTERM in ranks"), evidence=items)


def decide(job: JobEnvironment) -> Finding:
    """Decide from messages of the launcher or Slurm, unless the job had failed before or was interrupted by hand."""
    stops = [fact for fact in job.log if fact.kind == "job_stopped" and _reason(fact) in _REASONS]
    if not stops and job.lost:
        return _open("LOST", EvidenceItem("status", "status.json", _TEXTS.phrase("lost")))
    if not stops:
        return _of_ranks(job) or (_TEXTS.ruled_out() if job.has_messages else _TEXTS.undecided())
    stop = max(stops, key=lambda fact: _sure(_reason(fact)))
    first = {fact.file: fact.line for fact in reversed(stops)}
    reason, item = _reason(stop), stop.quoted()
    trouble_kinds = _AFTER_TROUBLE - (_AFTER_LOST_NODE if _REASONS[reason].get("node") else set())
    own = (e for e in job.errors if e.type and not is_victim(kind_of_exception(e.type, e.message, e.frames)))
    failed: list[LogFact | RankError] = [*(fact for fact in job.log if fact.kind in trouble_kinds), *own]
    if any(trouble.line < first.get(trouble.file, inf) for trouble in failed):
        return replace(_TEXTS.undecided("after_failure", reason=reason), evidence=(item,))
    quiet = None if _REASONS[reason].get("node") else job.silence
    if quiet is not None and not quiet.may_be_zone:
        return replace(_TEXTS.undecided("after_silence", reason=reason, silence=quiet), evidence=(item,))
    if not _sure(reason):
        return _open(reason, item)
    row, sure = ("default", _sure(reason)) if quiet is None else ("in_zone", min(OPEN, _sure(reason)))
    facts = _TEXTS.facts(row, reason=reason, silence=quiet, **_REASONS[reason])
    return confirmed(facts=facts, confidence=sure, evidence=(item,))


CAUSE = declared(__file__, job_environment, decide)
