"""What a report says of a job where no cause is confirmed: the account of its steps, its processes, what it printed."""

import math

from diagnostics.analysis.observations import observations
from diagnostics.analysis.printed_steps import SCALE_ENDS, PrintedSteps
from diagnostics.analysis.step_profile.account import LEAST_MS, Account
from diagnostics.contract.formatting import bytes_text, counted, ranks_spoken, seconds_text, verb
from diagnostics.evidence.model import Evidence, RunEvidence
from diagnostics.runs.records import as_mapping, number


def account_text(account: Account) -> str:
    """Return where the time of a step went."""
    if account.no_device_events:
        return "the traces hold no event of a device"
    parts = [] if account.overlap is None else [f"{account.overlap:.0%} of the communication overlaps"]
    exposed = f"exposed communication {account.exposed:.0%}"
    if account.on_device:
        idle = f"idle {account.idle:.0%} of the step"
        idle += f" (the least busy of {account.devices} devices)" if account.devices > 1 else ""
        parts.append(f"{exposed}, copies {account.copies:.0%}, {idle}")
    else:
        exposed += f" ({account.waiting:.0%} waiting for other ranks)" if account.waiting is not None else ""
        parts.append(f"{exposed}, without an operation {account.idle:.0%} of the step")
    parts += [f"only {account.seen_ms:.2g} ms are in the traces"] if account.seen_ms < LEAST_MS else []
    all_traced = account.traced >= account.world_size
    parts += [] if all_traced else [f"{account.traced} of {account.world_size} ranks traced"]
    return ", ".join(parts)


def run_text(run: RunEvidence) -> str:
    """Return how fast a run of dtk without traces was and what it took, as its summary says; empty without one."""
    figures = as_mapping(run.summary.get("figures"))
    step, loss, speed = (number(figures.get(name)) for name in ("step", "loss", "tokens_per_s"))
    time_s, peak_bytes = (number(figures.get(name)) for name in ("step_time_s", "peak_memory_bytes"))
    unit = str(run.summary.get("speed_unit", "token"))[:20]
    parts = [
        "" if step is None else counted(int(step), "step"),
        "" if loss is None else f"loss {loss:.4g}",
        "" if time_s is None else f"{seconds_text(time_s)} a step",
        "" if speed is None else f"{speed:,.0f} {unit}s/s",
        "" if peak_bytes is None else f"peak {bytes_text(peak_bytes)} on rank 0",
    ]
    text = ", ".join(filter(None, parts))
    return f"{text}; where the time of a step goes was not traced (record=full)" if text else ""


def processes_text(evidence: Evidence) -> str:
    """Return whether the ranks of a running job moved while they were observed; empty where nobody looked."""
    observed = sorted(observations(evidence).items())
    gone = tuple(rank for rank, seen in observed if seen.gone)
    moved = tuple(rank for rank, seen in observed if not (seen.gone or seen.stopped or seen.blocked_s))
    clauses = [f"{ranks_spoken(gone)} {verb(gone, 'has', 'have')} no process any more"] if gone else []
    clauses.append(f"{ranks_spoken(moved) if moved else 'no rank'} moved or worked between the looks")
    return "; ".join(clauses) if observed else ""


def printed_text(printed: PrintedSteps) -> str:
    """Return what printed steps show where nothing is wrong in them; empty without any."""
    logs = [log.series for log in printed.logs if log.series is not None]
    losses = [loss for series in logs for loss in (series.loss[0], series.loss[-1]) if math.isfinite(loss)]
    scales = [scale for log in printed.logs for scale in log.steps.overflow_scales]
    parts = [f"{printed.count:,} printed steps, loss {losses[0]:.4g} to {losses[-1]:.4g}"] if losses else []
    if scales:
        scale = f", now {scales[-1]:,.0f}" if math.isfinite(scales[-1]) else ""
        parts.append(f"{counted(len(scales), 'step')} skipped to find float16's loss scale{scale}")
    if not parts:
        return ""
    broken = any(series.is_non_finite() for series in logs)
    wrong = "figures that are not finite among them" if broken else "nothing wrong in them"
    if scales and scales[-1] <= SCALE_ENDS:
        wrong = "the loss scale at its lowest, where every further overflow loses a step"
    return f"{', '.join(parts)}, and {wrong}; what else happened is not recorded"
