"""The report of a job without a confirmed cause: the account of its steps, its processes, what it printed."""

import math
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any

from diagnostics.analysis.observations import observations
from diagnostics.analysis.printed_steps import SCALE_ENDS, PrintedSteps, printed_steps
from diagnostics.analysis.stall.symptoms import not_set_up
from diagnostics.analysis.step_profile.account import LEAST_MS, Account
from diagnostics.causes.registry import by_id
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Finding, Outcome, text_of
from diagnostics.contract.formatting import bytes_text, counted, filled, ranks_spoken, seconds_text, verb
from diagnostics.evidence.job.coverage import damaged
from diagnostics.evidence.model import Evidence, LogFact, RunEvidence
from diagnostics.evidence.readers import process
from diagnostics.report.measures import memory, share_text
from diagnostics.report.model import Report
from diagnostics.runs.records import as_mapping, number
from diagnostics.tree.outcome import account_of, in_trouble, is_unheard

_TEXTS: dict[str, str] = table_beside(__file__)["texts"]
_PARTS = 4  # Chosen: the number of parts of a peak that fit on a line.
_OF_RUN: dict[str, Callable[[float, str], str] | None] = {
    "step": lambda step, _: counted(int(step), "step"),
    "loss": lambda loss, _: f"loss {loss:.4g}",
    "step_time_s": lambda time_s, _: f"{seconds_text(time_s)} a step",
    "tokens_per_s": lambda speed, unit: f"{speed:,.0f} {unit}s/s",
    "peak_memory_bytes": lambda peak_bytes, _: f"peak {bytes_text(peak_bytes)} on rank 0",
    "mfu": None,
}
"""Figure of a summary -> its format in a line; None if only the page shows it."""


def without_cause(
    evidence: Evidence, outcome: Outcome, findings: Sequence[Finding], measures: Mapping[str, object]
) -> tuple[str, str]:
    """Return a statement about a job without a confirmed cause, and the figures behind it; empty if there is none."""
    account, hang = account_of(measures), measures.get("hang")
    if outcome == "healthy":
        return (account_text(account) if account is not None else run_text(evidence.run) if evidence.run else ""), ""
    if evidence.doubt:
        return "the dumps may be of different jobs, so the ranks are not compared", ""
    undecided = [finding for finding in findings if finding.status == "undecided"]
    if waits := [text_of(finding).claim for finding in undecided if finding.victims]:
        return waits[0], ""
    if is_unheard(evidence) and evidence.run:
        return unheard_text(evidence.run), ""
    if stopped := [f for f in undecided if f.evidence and f.cause in by_id() and by_id()[f.cause].tells_end]:
        return text_of(stopped[0]).summary.rstrip("."), ""
    trouble = in_trouble(evidence)
    if account is not None and outcome == "undecided" and not trouble and (account.unaccounted or not evidence.run):
        open_time = ", and the time is not accounted for" if account.unaccounted else ""
        return f"no cause is confirmed{open_time}", account_text(account)
    if outcome in ("oom", "undecided") and not trouble and (peak := memory_text(measures)):
        told = next((text_of(finding).summary.rstrip(".") for finding in undecided if finding.ranks), "")
        return "no cause is confirmed", f"{peak}; {told[0].lower()}{told[1:]}" if told else peak
    if failure := recorded_failure(evidence.run):
        return filled(_TEXTS["failed"], {"reason": failure}), ""
    if not trouble and evidence.run is not None and not evidence.run.state:
        return "there is no status.json that this dtk can read, so how the run ended is not known", ""
    if not trouble and any(fact.kind == "torchrun_signal" for fact in evidence.facts):
        return _TEXTS["stopping"], ""
    if logs := next((fact.fields["logs"] for fact in evidence.facts if fact.kind == "nothing_known"), 0):
        return f"no line of {counted(logs, 'log')} reports a known problem, which does not show that there was none", ""
    inits = {(fact.file, fact.fields["comm_rank"]): fact for fact in evidence.facts if fact.kind == "nccl_init"}
    if inits and not (trouble or any(evidence.files.values()) or printed_steps(evidence).count):
        return set_up_text([*inits.values()], evidence), ""
    if processes := processes_text(evidence):
        return processes, ""
    if not any(evidence.files.values()) and not trouble and (steps := printed_text(printed_steps(evidence))):
        return steps, ""
    return (calls_text(hang) if isinstance(hang, dict) and not (trouble or damaged(evidence)) else ""), ""


def recorded_failure(run: RunEvidence | None) -> str:
    """Return the recorded reason why a dtk run failed; empty if it did not fail or has none."""
    if run is None or run.status is None or run.state not in ("failed", "hung", "oom"):
        return ""
    return run.status.reason or ""


def set_up_text(inits: Sequence[LogFact], evidence: Evidence) -> str:
    """Return how far NCCL got in initializing its communicators, for logs that show nothing else."""
    complete = sorted({fact.fields["comm_rank"] for fact in inits if fact.fields["phase"] == "COMPLETE"})
    nranks = max(fact.fields["nranks"] for fact in inits)
    stage, ranks, others, _ = not_set_up(evidence) or ("", (), (), ())
    row = f"did_not_{stage}" if stage else "set_up" if len(complete) == nranks else "set_up_partly"
    return filled(_TEXTS[row], {"complete": len(complete), "nranks": nranks, "ranks": ranks, "others": others})


def log_asks(report: Report) -> str:
    """Return what to record if only a log, or observations, show no problem; empty with other evidence."""
    kinds = {entry.kind for entry in report.coverage}
    row = "ask_log" if kinds <= {"log", "logs"} else "ask_again" if process.KIND in kinds else ""
    return _TEXTS[row] if report.statement and row else ""


def account_asks(account: Account) -> str:
    """Return what to record to explain the step time that has no reason."""
    waits = 2 * (account.waiting or 0.0) > account.exposed  # Known on CPU only.
    others = "ask_ranks" if account.traced < account.world_size else "ask_cores" if waits else "ask_shapes"
    of_calls = account.exposed >= max(account.copies, account.idle)
    return _TEXTS["ask_device" if account.no_device_events else others if of_calls else "ask_stack"]


def memory_text(measures: Mapping[str, Any]) -> str:
    """Return what held most memory on the rank with the highest peak, from traces or snapshots; empty without them."""
    if not (ranks := memory(measures)):
        return ""
    rank, own = max(ranks.items(), key=lambda item: item[1].peak_bytes)
    parts = ", ".join(f"{name}{share_text(size, own.peak_bytes)}" for name, size in own.at_peak[:_PARTS])
    failed = own.over_time.failed if own.over_time is not None else None
    request = f"a request of {bytes_text(failed.bytes)} failed; " if failed is not None else ""
    what = own.over_time.of if own.over_time is not None else "tensors"
    who = f"{ranks_spoken([rank])}{f' ({own.file})' if own.file else ''}"
    return f"{request}{bytes_text(own.peak_bytes)} in {what} on {who}{f': {parts}' if parts else ''}"


def unheard_text(run: RunEvidence) -> str:
    """Return why a run may have ended although its status is running."""
    silent_s = run.silent_s(time())
    last = "no rank has left a heartbeat" if silent_s is None else f"its last heartbeat is {seconds_text(silent_s)} old"
    where = "its processes exist (dtk attach shows where)" if run.seen else "its processes are on another machine"
    return f"status.json says that the run is running, but {last}, and {where}"


def calls_text(hang: Mapping[str, Any]) -> str:
    """Return that all ranks' recorded calls completed, or are too recent to hang; empty if they did not complete."""
    if hang.get("young_s"):
        return filled(_TEXTS["young"], hang)
    if hang.get("ranks_waiting") or not hang.get("ranks") or hang["ranks"] != hang.get("world_size"):
        return ""
    return filled(_TEXTS["completed" if hang["calls_compared"] else "no_calls"], hang)


def account_text(account: Account) -> str:
    """Return how the time of a step was spent."""
    if account.no_device_events:
        return "the traces hold no event of a device"
    parts = [] if account.overlap is None else [f"{account.overlap:.0%} of the communication overlaps"]
    exposed = f"exposed communication {account.exposed:.0%} of the step"
    if account.on_device:
        idle = f"idle {account.idle:.0%}"
        idle += f" (the least busy of {account.devices} devices)" if account.devices > 1 else ""
        parts.append(f"{exposed}, copies {account.copies:.0%}, {idle}")
    else:
        exposed += f" ({account.waiting:.0%} waiting for other ranks)" if account.waiting is not None else ""
        parts.append(f"{exposed}, no operation in {account.idle:.0%}")
    parts += [f"only {account.seen_ms:.2g} ms are in the traces"] if account.seen_ms < LEAST_MS else []
    all_traced = account.traced >= account.world_size
    parts += [] if all_traced else [f"{account.traced} of {account.world_size} ranks traced"]
    return ", ".join(parts)


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


def run_text(run: RunEvidence) -> str:
    """Return the speed and memory of a dtk run without traces, from its summary; empty without one."""
    figures: dict[str, Any] = run_measures(run)
    parts = [
        f"{text(figures[name], figures['speed_unit'])}" for name, text in _OF_RUN.items() if name in figures and text
    ]
    return f"{', '.join(parts)}; where the time of a step goes was not traced (record=full)" if parts else ""


def processes_text(evidence: Evidence) -> str:
    """Return which ranks of a running job made progress while observed, and which waited; empty without any."""
    observed = observations(evidence)
    ended = [rank for rank, seen in observed.items() if seen.exited]
    alive = {rank: seen.blocked_s for rank, seen in observed.items() if not (seen.exited or seen.stopped)}
    moved, waited = [rank for rank in alive if not alive[rank]], [rank for rank in alive if alive[rank]]
    exited = f"{ranks_spoken(ended)} no longer {verb(ended, 'has', 'have')} a process; " if ended else ""
    have_group = any(seen.groups != 0 for seen in observed.values())
    start = "" if have_group else "no rank has made a process group yet; "
    peers = f"; {ranks_spoken(waited)} waited for {max(alive[rank] for rank in waited):.0f} s" if waited else ""
    return f"{exited}{start}{ranks_spoken(moved)} made progress between the observations{peers}" if observed else ""


def printed_text(printed: PrintedSteps) -> str:
    """Return what printed steps show if they show no problem; empty if there are none."""
    logs = [log.series for log in printed.logs if log.series is not None]
    losses = [loss for series in logs for loss in (series.loss[0], series.loss[-1]) if math.isfinite(loss)]
    scales = [scale for log in printed.logs for scale in log.steps.overflow_scales]
    parts = [f"{printed.count:,} printed steps, loss {losses[0]:.4g} to {losses[-1]:.4g}"] if losses else []
    if scales:
        scale = f", now {scales[-1]:,.0f}" if math.isfinite(scales[-1]) else ""
        parts.append(f"{counted(len(scales), 'step')} skipped to find float16's loss scale{scale}")
    if not parts:
        return ""
    row = "non_finite" if any(series.is_non_finite() for series in logs) else "nothing_wrong"
    row = "scale_lowest" if scales and scales[-1] <= SCALE_ENDS else row
    return f"{', '.join(parts)}, and {_TEXTS[row]}; what else happened is not recorded"
