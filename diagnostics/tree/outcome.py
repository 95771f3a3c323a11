"""The outcome of a run: that of its first root cause, or healthy only if no evidence contradicts it."""

from collections.abc import Mapping, Sequence
from time import time
from typing import Any

from diagnostics.analysis.step_profile.account import Account
from diagnostics.analysis.step_times import Slowed
from diagnostics.causes.registry import by_id, traits
from diagnostics.contract.causes import Sign
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Finding, Outcome
from diagnostics.evidence.endings import kind_of_exception
from diagnostics.evidence.job.registry import damaged
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers import process, watch
from diagnostics.evidence.readers.inspector import InspectorFile
from diagnostics.tree.arbitrate import Verdict

TROUBLE, _ENDS, _WAITS = (frozenset[str](table_beside(__file__)[name]) for name in ("trouble", "ends", "waits"))
"""Kinds of log lines that a healthy job does not write."""
_DOUBTS = _WAITS | {"nccl_warn", "non_finite_eval", "gloo_closed"}
"""Kinds of lines of which a job that ended in order is not said to be in good health."""
_SILENT_S = 120.0
"""Ranks write a heartbeat at every step and region. A run without one for longer may have ended or hang, so it is not
called healthy; a step that takes longer is rare, and the next heartbeat corrects it."""


def outcome(
    evidence: Evidence, verdict: Verdict, findings: Sequence[Finding], measures: Mapping[str, object], slowed: Slowed
) -> Outcome:
    """Return the outcome of the run."""
    if verdict.outcome is not None:
        return _of_root(evidence, verdict.roots[0].cause, verdict.outcome, measures)
    accounted = account_of(measures)
    if ran_out(measures) and not (evidence.run or in_trouble(evidence)):
        return "oom"  # A snapshot shows it.
    if (happened := _without_cause(evidence, findings)) != "healthy":
        return happened
    # Neither the time of a step nor the end of the job is known without traces or a status; nor are slower steps.
    is_known = bool(state_of(evidence)) if accounted is None else not accounted.unaccounted
    return "healthy" if is_known and slowed() is None else "undecided"


def _of_root(evidence: Evidence, root: str, own_outcome: Outcome, measures: Mapping[str, object]) -> Outcome:
    """Return the outcome of a root cause for this run; `own_outcome` is the result of arbitration."""
    cause = by_id().get(root)
    waited = any(fact.kind in _WAITS for fact in evidence.facts)
    if own_outcome != (cause.outcome if cause is not None else "at_risk") and (own_outcome != "hung" or waited):
        return own_outcome  # Something else that it explains tells more of the run.
    if own_outcome == "hung" and state_of(evidence) == "finished":
        return "diverged"  # The ranks' calls differed and matched by chance, so nothing hangs.
    kinds, state, hang = {fact.kind for fact in evidence.facts}, state_of(evidence), measures.get("hang")
    endings = {kind_of_exception(error.type, error.message, error.frames) for error in evidence.errors if error.type}
    if own_outcome == "slow" and state != "finished" and kinds & _ENDS and endings - {"stopped"}:
        return "hung" if waited else "crashed"  # A rank that is late ends a job when the others give up.
    waiting = hang.get("ranks_waiting") if isinstance(hang, dict) else None
    signs: dict[Sign, bool] = {
        "failed": state == "failed",
        "raised": bool(evidence.errors),
        "refused": not kinds.isdisjoint(("port_in_use", "port_refused")),
        "unreduced": "unreduced" in endings or any(kind.startswith("ddp_unused") for kind in kinds),
        "fitted": waiting == 0 and process.KIND not in kinds and not in_trouble(evidence),
        "alone": not waiting and bool(kinds & _ENDS) and not kinds & _WAITS,
        "unmet": bool(kinds & {"nccl_connect", "nccl_no_route"}),
        "ran_out": state == "oom" or bool(kinds & {"cuda_oom", "cpu_oom"}) or ran_out(measures),
    }
    led_to = traits(root).outcome_when | (dict(cause.outcome_when) if cause is not None else {})
    return next((other for sign, other in led_to.items() if signs.get(sign)), own_outcome)


def _without_cause(evidence: Evidence, findings: Sequence[Finding]) -> Outcome:
    if damaged(evidence) or any(problem.kind in ("cause", "detector") for problem in evidence.problems):
        return "undecided"  # The findings of a failed detector are unknown too.
    state = state_of(evidence)
    suspected = any(finding.suspected for finding in findings)
    if state in ("finished", "preempted", "running"):
        warned = suspected or any(fact.kind in _DOUBTS for fact in evidence.facts)
        warned |= evidence.run is not None and any(error.type for error in evidence.errors)
        return "undecided" if warned or (state == "running" and is_unheard(evidence)) else "healthy"
    confirmed = [by_id()[f.cause] for f in findings if f.status == "confirmed" and f.cause in by_id()]
    if named := next((cause.outcome for cause in confirmed if cause.names_outcome), None):
        return named  # Although the reason is unknown.
    # Variables in order, printed losses and a log without trouble say nothing about the job's end.
    decided = any(finding.status == "ruled_out" and traits(finding.cause).shows_end for finding in findings)
    decided &= not evidence.facts or any(evidence.files.values())
    # Dumps and stacks are mostly taken of jobs that hang: while a hang is possible they show no good health.
    taken = {kind for kind, handles in evidence.files.items() if handles} | ({"stacks"} if evidence.stacks else set())
    decided &= taken != {InspectorFile.kind}  # It shows collectives only, not the time between them.
    is_open = any(finding.status == "undecided" and traits(finding.cause).taken_while & taken for finding in findings)
    own = evidence.run is not None  # Whose status says no end, or none that can be read.
    return "undecided" if own or suspected or is_open or in_trouble(evidence) or not decided else "healthy"


def state_of(evidence: Evidence) -> str:
    """Return how the run ended according to its record or its watch; empty without either."""
    return "finished" if watch.ended_well(evidence) else evidence.run.state if evidence.run else ""


def in_trouble(evidence: Evidence) -> bool:
    """Return whether there is evidence that a healthy job does not leave."""
    return bool(evidence.errors) or any(
        fact.kind in TROUBLE or (fact.kind == "start" and fact.fields["state"] != "met") for fact in evidence.facts
    )


def is_unheard(evidence: Evidence) -> bool:
    """Return whether a run that claims to be running has no recent heartbeat, so that it may have ended or hang."""
    run = evidence.run
    if run is None or run.state != "running":
        return False
    silent_s = run.silent_s(time())
    return not run.seen if silent_s is None else silent_s >= _SILENT_S


def ran_out(measures: Mapping[str, Any]) -> bool:
    """Return whether memory ran out, according to allocator snapshots or messages."""
    memory = measures.get("memory")
    return isinstance(memory, dict) and bool(memory.get("out_of_memory"))


def account_of(measures: Mapping[str, Any]) -> Account | None:
    """Return where the time of a step went, as far as traces show; None without traces."""
    overlap = measures.get("overlap")
    shares = overlap.get("account") if isinstance(overlap, dict) else None
    return Account(**shares) if shares else None
