"""The report of a job without a confirmed cause: the account of its steps, its processes, what it printed."""

import math
from collections.abc import Collection, Mapping, Sequence
from time import time
from typing import Any, NamedTuple

from diagnostics.analysis.observations import observations
from diagnostics.analysis.printed_steps import SCALE_ENDS, PrintedSteps, printed_steps, remarks
from diagnostics.analysis.step_profile.account import LEAST_MS, MOST, Account
from diagnostics.analysis.step_times import Slowed
from diagnostics.analysis.symptoms.absent import set_up
from diagnostics.causes.registry import by_id
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Finding, Outcome, text_of
from diagnostics.contract.formatting import UNNAMED, filled
from diagnostics.evidence.endings import of_error
from diagnostics.evidence.job.registry import damaged, records
from diagnostics.evidence.model import CLAUSE, Evidence, RunEvidence, shortened
from diagnostics.evidence.readers import process
from diagnostics.evidence.readers.log import last_progress, training_ended
from diagnostics.evidence.stacks.dumps import main_thread, where
from diagnostics.report.measures import memory, of_what, share_text
from diagnostics.report.model import Report
from diagnostics.report.wording import texts_beside
from diagnostics.runs.records import as_mapping, number
from diagnostics.tree.outcome import account_of, in_trouble, is_unheard

_said = texts_beside(__file__)
_PARTS = 4  # Chosen: the number of parts of a peak that fit on a line.
_OF_RUN: dict[str, str] = table_beside(__file__)["run"]


class Statement(NamedTuple):
    """What the report says about a job without a confirmed cause, and the figures behind it."""

    text: str = ""
    figures: str = ""
    cause: str = ""
    """Id of the undecided cause that it is about; empty if it is about none."""
    quotes_launcher: bool = False
    """Whether it repeats the reason that the launcher recorded."""
    asks: str = "ask_stderr"
    """Row of the one thing to record that decides most of what a log leaves open."""


def without_cause(
    evidence: Evidence, outcome: Outcome, findings: Sequence[Finding], measures: Mapping[str, object], slowed: Slowed
) -> Statement:
    """Return what can be said about a job without a confirmed cause; empty if nothing."""
    account, hang = account_of(measures), measures.get("hang")
    if outcome == "healthy":
        return Statement(account_text(account) or run_text(evidence.run))
    if evidence.doubt:
        return Statement(_said("doubt"))
    undecided = [finding for finding in findings if finding.status == "undecided"]
    if waits := [finding for finding in undecided if finding.victims]:
        return Statement(text_of(waits[0]).claim, cause=waits[0].cause)
    if is_unheard(evidence) and evidence.run:
        silent_s = evidence.run.silent_s(time())
        last = _said("no_heartbeat") if silent_s is None else _said("heartbeat", silent_s=silent_s)
        return Statement(_said("unheard", last=last, where=_said("here" if evidence.run.seen else "elsewhere")))
    if stopped := [f for f in undecided if f.evidence and f.cause in by_id() and by_id()[f.cause].tells_end]:
        return Statement(text_of(stopped[0]).summary.rstrip("."), cause=stopped[0].cause)
    if raised := raised_text(evidence):
        return Statement(raised)
    if buffered := [fact for fact in evidence.facts if fact.fields.get("buffered")]:
        return Statement(_said("buffered", what=shortened(buffered[-1].text, CLAUSE)))
    trouble = in_trouble(evidence)
    if not trouble and (change := slowed()) is not None:
        row = "slower" if change.at_once else "slower_gradually"
        return Statement(_said(row, change=change), account_text(account), asks="ask_trace")
    if account is not None and outcome == "undecided" and not trouble and (account.unaccounted or not evidence.run):
        return Statement(_said("unaccounted" if account.unaccounted else "unconfirmed"), account_text(account))
    if outcome in ("oom", "undecided") and not trouble and (peak := memory_text(measures)):
        summary = next((text_of(finding).summary.rstrip(".") for finding in undecided if finding.ranks), "")
        return Statement(_said("unconfirmed"), f"{peak}; {summary[0].lower()}{summary[1:]}" if summary else peak)
    if failure := recorded_failure(evidence.run):
        return Statement(_said("failed", reason=failure), quotes_launcher=True)
    if not trouble and evidence.run is not None and not evidence.run.state:
        return Statement(_said("no_status"))
    if not trouble and any(fact.kind == "torchrun_signal" for fact in evidence.facts):
        return Statement(_said("stopping"))
    if cut := [fact for fact in evidence.facts if fact.kind == "cut_traceback"]:
        ranks = tuple(fact.rank for fact in cut if fact.rank is not None)
        return Statement(_said("cut", who=ranks or "an unidentified rank", at=cut[0].text))
    if logs := next((fact.fields["logs"] for fact in evidence.facts if fact.kind == "nothing_known"), 0):
        return Statement(_said("nothing_known", logs=logs))
    is_log = not (trouble or any(evidence.files.values()))
    if progress := (set_up_text(evidence) if is_log else "") or processes_text(evidence):
        return Statement(progress, asks="ask_where")
    if len(evidence.stacks) == 1 and not trouble and (thread := main_thread(evidence.stacks[0])) and thread.frames:
        return Statement(_said("stack", at=where(evidence.stacks[0]) or thread.frames[0]))
    if is_log and (of_log := log_statement(evidence, undecided)).text:
        return of_log
    return Statement(calls_text(hang) if isinstance(hang, dict) and not (trouble or damaged(evidence)) else "")


def recorded_failure(run: RunEvidence | None, quoted: Collection[int | None] = ()) -> str:
    """Return the recorded reason why a dtk run failed; empty if it has none, or is that of a rank that is `quoted`."""
    if run is None or run.status is None or run.state not in ("failed", "hung", "oom"):
        return ""
    is_quoted = run.status.failure is not None and run.status.failure.rank in quoted
    return "" if is_quoted else run.status.reason or ""


def raised_text(evidence: Evidence) -> str:
    """Return what a rank of a run raised that is recorded as finished; empty without it."""
    raised = next((error for error in evidence.errors if error.type), None)
    if raised is None or evidence.run is None or evidence.run.state != "finished":
        return ""
    end = of_error(raised, UNNAMED if raised.rank is None else raised.rank)
    row = "raised_after_steps" if 0 < last_progress(evidence).get(end.file, 0) < end.line else "raised"
    return _said(row, end=end, who="a process" if end.rank == UNNAMED else (end.rank,))


def log_statement(evidence: Evidence, undecided: Sequence[Finding]) -> Statement:
    """Return what logs without trouble show: steps, the end of the training, or no line of interest; else empty."""
    steps, ended = printed_text(printed_steps(evidence), evidence), training_ended(evidence)
    if steps or ended:
        return Statement(steps or _said("ended"), asks="ask_end" if ended else "ask_where")
    kinds = {kind for kind, kept in records(evidence).items() if kept}
    is_empty = kinds == {"log"} and not any(finding.evidence for finding in undecided)
    return Statement(_said("nothing_known", logs=len({fact.file for fact in evidence.facts})) if is_empty else "")


def set_up_text(evidence: Evidence) -> str:
    """Return how far NCCL got in initializing its communicators, for logs that show nothing else; else empty."""
    of_rank = {(fact.file, fact.fields["comm_rank"]): fact for fact in evidence.facts if fact.kind == "nccl_init"}
    if not (inits := of_rank.values()) or printed_steps(evidence).count:
        return ""
    complete = sorted({fact.fields["comm_rank"] for fact in inits if fact.fields["phase"] == "COMPLETE"})
    nranks = max(fact.fields["nranks"] for fact in inits)
    far = set_up(evidence)
    row = f"set_up_{far.row}" if far else "set_up" if len(complete) == nranks else "set_up_partly"
    return _said(row, complete=len(complete), nranks=nranks, far=far)


def log_asks(report: Report) -> str:
    """Return the one thing to record if only a log, or observations, show no problem; empty with other evidence."""
    kinds = {entry.kind for entry in report.coverage}
    row = report.asks if kinds <= {"log", "logs"} else "ask_again" if process.KIND in kinds else ""
    row = row or ("ask_stacks" if "stacks" in kinds else "")
    return _said(row) if report.statement and row else ""


def account_asks(account: Account) -> str:
    """Return what to record to explain the step time that has no reason."""
    waits = 2 * (account.waiting or 0.0) > account.exposed  # Known on CPU only.
    others = "ask_ranks" if account.traced < account.world_size else "ask_cores" if waits else "ask_shapes"
    of_calls = account.exposed >= max(account.copies, account.idle) or max(account.copies, account.idle) <= MOST
    if account.no_device_events or account.own_kinds:
        return _said("ask_device" if account.no_device_events else "ask_vendor")
    return _said(others if of_calls else "ask_stack")


def memory_text(measures: Mapping[str, Any]) -> str:
    """Return what held most memory on the rank with the highest peak, from traces or snapshots; empty without them."""
    if not (ranks := memory(measures)):
        return ""
    rank, own = max(ranks.items(), key=lambda item: item[1].peak_bytes)
    parts = ", ".join(f"{name}{share_text(size, own.peak_bytes)}" for name, size in own.at_peak[:_PARTS])
    failed = own.over_time.failed if own.over_time is not None else None
    request = _said("request", size=failed.bytes) if failed is not None else ""
    what, file = of_what(own.over_time, "tensors"), f" ({own.file})" if own.file else ""
    peak = _said("peak", size=own.peak_bytes, what=what, ranks=[rank], file=file)
    return f"{request}{peak}{f': {parts}' if parts else ''}"


def calls_text(hang: Mapping[str, Any]) -> str:
    """Return that all ranks' recorded calls completed, or are too recent to hang; empty if they did not complete."""
    if earlier := hang.get("taken_earlier"):
        return _said("taken_earlier", ranks=tuple(earlier))
    if hang.get("young_s"):
        return _said("young", **hang)
    if hang.get("ranks_waiting") or not hang.get("ranks") or hang["ranks"] != hang.get("world_size"):
        return ""
    return _said("completed" if hang["calls_compared"] else "no_calls", **hang)


def account_text(account: Account | None) -> str:
    """Return how the time of a step was spent; empty if it is unknown."""
    if account is None:
        return ""
    if account.no_device_events:
        return _said("no_device_events")
    of_device = ["copies", *(["least_busy"] if account.devices > 1 else [])]
    of_cpu = [*(["waiting"] if account.waiting is not None else []), "no_operation"]
    rows = [*(["overlap"] if account.overlap is not None else []), "exposed"]
    rows += of_device if account.on_device else of_cpu
    rows += ["own_kinds"] * account.own_kinds
    rows += ["short"] * (account.seen_ms < LEAST_MS) + ["traced"] * (account.traced < account.world_size)
    return "".join(_said(row, account=account) for row in rows).removeprefix(", ")


def run_measures(run: RunEvidence | None) -> dict[str, object]:
    """Return the figures in the summary of a dtk run, and the memory of its device, for `measures.run`."""
    if run is None:
        return {}
    figures, hardware = as_mapping(run.summary.get("figures")), as_mapping(run.manifest.get("hardware"))
    recorded: dict[str, object] = {name: value for name in _OF_RUN if (value := number(figures.get(name))) is not None}
    gpus = hardware.get("gpus")
    capacity = number(as_mapping(gpus[0]).get("memory_bytes")) if isinstance(gpus, list) and gpus else None
    recorded |= {"device_memory_bytes": capacity} if capacity else {}
    return {**recorded, "speed_unit": str(run.summary.get("speed_unit", "token"))[:20]} if recorded else {}


def run_text(run: RunEvidence | None) -> str:
    """Return the speed and memory of a dtk run without traces, from its summary; empty without one."""
    figures: dict[str, Any] = run_measures(run)
    figures |= {"step": int(figures["step"])} if "step" in figures else {}
    parts = [filled(text, figures) for name, text in _OF_RUN.items() if name in figures and text]
    return _said("untraced", parts=parts) if parts else ""


def processes_text(evidence: Evidence) -> str:
    """Return which ranks of a running job made progress while observed, and which waited; empty without any."""
    observed = observations(evidence)
    ended = [rank for rank, seen in observed.items() if seen.exited]
    alive = {rank: seen.blocked_s for rank, seen in observed.items() if not (seen.exited or seen.stopped)}
    moved, waited = [rank for rank in alive if not alive[rank]], [rank for rank in alive if alive[rank]]
    parts = [_said("exited", ranks=ended)] if ended else []
    parts += [] if any(seen.groups != 0 for seen in observed.values()) else [_said("no_group")]
    parts.append(_said("moved", ranks=moved))
    parts += [_said("waited", ranks=waited, waited_s=max(alive[rank] for rank in waited))] if waited else []
    return "; ".join(parts) if observed else ""


def remarks_on(printed: PrintedSteps) -> str:
    """Return what is to be said of printed steps without a fault: spikes, and what is too recent to judge."""
    texts = ("; ".join(_said(row, case=case) for row, case in remarks(log)) for log in printed.logs)
    return next(filter(None, texts), "")  # Every rank may print the same steps.


def printed_text(printed: PrintedSteps, evidence: Evidence) -> str:
    """Return what printed steps show if they show no problem, and whether the training ended; empty without steps."""
    logs = [log.series for log in printed.logs if log.series.lines]
    losses = [loss for series in logs for loss in (series.loss[0], series.loss[-1]) if math.isfinite(loss)]
    scales = [scale for log in printed.logs for scale in log.steps.overflow_scales]
    loss = " to ".join(dict.fromkeys(f"{loss:.4g}" for loss in (*losses[:1], *losses[-1:])))
    parts = [_said("losses", count=printed.count, loss=loss)] if losses else []
    if scales:
        scale = f", now {scales[-1]:{',.0f' if scales[-1] >= 1 else '.4g'}}" if math.isfinite(scales[-1]) else ""
        parts.append(_said("scaled", scales=len(scales), scale=scale))
    if not parts:
        return ""
    row = "non_finite" if any(series.is_non_finite() for series in logs) else "nothing_wrong"
    row = "scale_lowest" if scales and scales[-1] == SCALE_ENDS else row
    verdict = (remarks_on(printed) if row == "nothing_wrong" else "") or _said(row)
    ended = training_ended(evidence)
    return _said("printed_to_the_end" if ended else "printed", parts=parts, verdict=verdict)
