"""Decides `numeric.non_finite`: at which step a loss or gradient first was NaN or infinite, and on which rank.

The rank's own loss tells it: the reduced loss and gradient are NaN on every rank, whoever began.
"""

import re
from dataclasses import dataclass
from typing import Any

from diagnostics.analysis.metrics_series import BadFigure, Metrics, read_metrics
from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Remedy, Where
from diagnostics.evidence.model import Evidence, LogFact, Problem, RankError, RunEvidence

CAUSE = "numeric.non_finite"
RISING = 1.5
"""Loss over its lowest value from which it counts as having risen before it broke."""
_ANOMALY = re.compile(r"Function '(?P<function>\w+)' returned nan values in its (?P<output>\d+)th output")
_CHECKED = re.compile(r"\b(?:loss|grad\w*)\b.{0,60}\b(?:nan|inf|infinite|not finite|non-?finite)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Seen:
    """One `non_finite` event of a rank."""

    rank: int
    step: int
    value: str
    event: dict[str, Any]


def decide(evidence: Evidence, problems: list[Problem]) -> Finding:
    """One finding, whatever there is; damage goes to `problems`."""
    run = evidence.run
    metrics = _metrics(evidence, problems)
    losses, norms = _events(run, "loss"), _events(run, "grad_norm")
    raised = [error for error in evidence.errors if _ANOMALY.search(error.message)]
    checked = [error for error in evidence.errors if _CHECKED.search(f"{error.type} {error.message}")]
    bad = metrics.bad if metrics else {}
    loss_step = min((one.step for one in losses), default=None)
    norm_step = min((one.step for one in norms), default=None)
    if run is not None and loss_step is not None and (norm_step is None or loss_step <= norm_step):
        return _from_losses(evidence, run, [one for one in losses if one.step == loss_step], metrics)
    if run is not None and norm_step is not None:
        return _from_gradient(evidence, run, [one for one in norms if one.step == norm_step], metrics)
    if raised:
        return _from_anomaly(raised)
    first = _first_bad(bad, scaled=run is not None and _scaled(run))
    if run is not None and first is not None:
        return _from_metrics(evidence, run, first, metrics)
    if checked:
        return _from_check(checked)
    printed = [fact for fact in evidence.facts if fact.kind == "non_finite_loss"]
    if printed and metrics is None:
        return _from_log(printed)
    return _clean(run, metrics)


def _events(run: RunEvidence | None, figure: str) -> list[Seen]:
    """The first event of each rank about this figure."""
    found: dict[int, Seen] = {}
    for rank, events in sorted(run.events.items()) if run else ():
        for event in events:
            step = event.get("step")
            if event.get("name") == "non_finite" and event.get("figure") == figure and isinstance(step, int):
                found.setdefault(rank, Seen(rank, step, str(event.get("value")), event))
    return list(found.values())


def _metrics(evidence: Evidence, problems: list[Problem]) -> Metrics | None:
    if evidence.run is None:
        return None
    path = RunPaths(evidence.run.root).metrics
    try:
        if path.is_symlink() or not path.is_file():
            return None
        return read_metrics(path, evidence.limits)
    except (OSError, ValueError) as problem:
        problems.append(Problem("metrics", evidence.relative(path), " ".join(str(problem).split())[:200]))
        return None


def _scaled(run: RunEvidence) -> bool:
    """Whether losses are scaled (fp16): then a gradient that overflows is skipped and means nothing."""
    return run.get("precision.initial_loss_scale") is not None


def _first_bad(bad: dict[str, BadFigure], scaled: bool) -> BadFigure | None:
    counted = [one for one in bad.values() if not (scaled and one.figure == "grad_norm")]
    return min(counted, key=lambda one: (one.step, one.line, one.figure != "loss"), default=None)


def _from_losses(evidence: Evidence, run: RunEvidence, first: list[Seen], metrics: Metrics | None) -> Finding:
    """Some rank's own loss was the first thing that was not finite."""
    step, ranks = first[0].step, tuple(one.rank for one in first)
    world = evidence.world_size or len(run.events)
    alone = len(ranks) < len(run.events) or world == 1
    silent = sorted(set(range(world)) - set(run.events)) if world <= 1_000_000 else []
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))}"
    if alone:
        others = "; the other ranks' own losses were finite there and broke after it" if world > 1 else ""
        summary = f"The loss of {who} became {first[0].value} at step {step}{others}."
    else:
        summary = f"The losses of all ranks became {first[0].value} at step {step} at once: no single rank began it."
    if silent and alone:
        summary += f" {len(silent)} ranks left no record, so another may have broken in the same step."
    passing = _scaled(run) and metrics is not None and metrics.recovered
    if passing:
        summary += " It was finite again later, as loss scaling allows."
    return Finding(
        cause=CAUSE,
        status="confirmed",
        summary=summary,
        confidence=0.4 if passing else 0.97 if not silent else 0.8,
        ranks=ranks if alone else (),
        victims=tuple(rank for rank in sorted(run.events) if rank not in ranks) if alone else (),
        step=step,
        cost=_cost(step, metrics),
        evidence=tuple(_item(evidence, run, one, f"loss {one.value} at step {one.step}") for one in first[:8]),
        remedies=_remedies(run, metrics, step, ranks if alone and world > 1 else ()),
        measured=f"loss {first[0].value} on {len(ranks)} of {world} ranks at step {step}",
    )


def _from_gradient(evidence: Evidence, run: RunEvidence, first: list[Seen], metrics: Metrics | None) -> Finding:
    """All losses were finite, and the gradient that came of them was not."""
    step = first[0].step
    named = [one for one in first if one.event.get("parameter")]
    looked = [one for one in first if one.event.get("parameters_seen")]
    if named:
        event = named[0].event
        many = f"{event.get('parameters_affected')} of {event.get('parameters_seen')}"
        where = f"first in {event['parameter']} ({many} parameters)"
    elif looked:
        where = "though every single gradient was finite: their sum of squares overflowed"
    else:
        where = "in a step that was not logged, so the parameter is not known"
    single = (evidence.world_size or len(run.events)) == 1
    who = "" if single else " Gradients are the same on all ranks after the reduction, so they do not tell which began."
    summary = f"The gradient became {first[0].value} at step {step} while the loss was finite, {where}.{who}"
    return Finding(
        cause=CAUSE,
        status="confirmed",
        summary=summary,
        confidence=0.95,
        ranks=(0,) if single else (),
        step=step,
        cost=_cost(step, metrics),
        evidence=tuple(_item(evidence, run, one, f"grad_norm {one.value} at step {one.step}") for one in first[:8]),
        remedies=_remedies(run, metrics, step, ()),
        measured=f"grad_norm {first[0].value} at step {step}",
    )


def _from_metrics(evidence: Evidence, run: RunEvidence, first: BadFigure, metrics: Metrics | None) -> Finding:
    """Only the global figures are there."""
    since = f"after step {first.step_before} and " if first.step_before is not None else ""
    summary = (
        f"{first.figure} is {first.value} at step {first.step}; it began {since}not later than that. "
        "Which rank began it is not recorded."
    )
    file = evidence.relative(RunPaths(run.root).metrics)
    return Finding(
        cause=CAUSE,
        status="confirmed",
        summary=summary,
        confidence=0.9,
        step=first.step,
        cost=_cost(first.step, metrics),
        evidence=(EvidenceItem("metrics", file, f"{first.figure} {first.value}", first.line),),
        remedies=_remedies(run, metrics, first.step, ()),
        measured=f"{first.figure} {first.value} at step {first.step}",
    )


def _from_anomaly(raised: list[RankError]) -> Finding:
    """Anomaly detection stopped in the backward of a function."""
    error = raised[0]
    match = _ANOMALY.search(error.message)
    function = match["function"] if match else "a function"
    ranks = tuple(sorted({one.rank for one in raised if one.rank is not None}))
    own = [frame for frame in error.frames if "/torch/" not in frame.file and "site-packages" not in frame.file]
    where = (Where(error.rank, own[0].file, own[0].line, own[0].function, f"backward of {function}"),) if own else ()
    return Finding(
        cause=CAUSE,
        status="confirmed",
        summary=f"The backward of {function} returned NaN; anomaly detection stopped the run there.",
        confidence=0.95,
        ranks=ranks,
        step=error.step,
        where=where,
        evidence=tuple(EvidenceItem("error", e.file, e.message[:200], e.line or None) for e in raised[:8]),
        remedies=(Remedy("code", f"make the input of {function} safe (eps, clamp, float32)", "it returned NaN"),),
        measured=f"{len(raised)} ranks by anomaly detection",
    )


def _from_check(checked: list[RankError]) -> Finding:
    """The script's own check raised; the rank that checks is not always the rank that began."""
    error = checked[0]
    victims = tuple(sorted({one.rank for one in checked if one.rank is not None}))
    return Finding(
        cause=CAUSE,
        status="confirmed",
        summary=f"The script's own check stopped it: {error.message[:160]}. Which rank began it is open.",
        confidence=0.8,
        victims=victims,
        step=error.step,
        evidence=tuple(EvidenceItem("error", e.file, e.message[:200], e.line or None) for e in checked[:8]),
        remedies=(_look_closer((), None),),
        measured=f"{len(checked)} exceptions say so",
    )


def _from_log(printed: list[LogFact]) -> Finding:
    """The script's own log: mostly one rank prints, and a loss that was reduced is NaN on all, so nobody is blamed."""
    steps = {fact.file: fact.fields.get("step", fact.fields.get("bar")) for fact in printed}
    first = min(printed, key=lambda fact: (steps[fact.file] is None, steps[fact.file] or 0, fact.file, fact.line))
    step = first.fields.get("step", first.fields.get("bar"))
    figure, value = first.fields["figure"], first.fields["value"]
    at = f"at step {step} ({first.file}:{first.line})" if step is not None else f"in {first.file}:{first.line}"
    return Finding(
        cause=CAUSE,
        status="confirmed",
        summary=f"The log first tells {figure} {value} {at}. Which rank began it is not in a log.",
        confidence=0.85,
        step=step,
        evidence=tuple(EvidenceItem("log", fact.file, fact.text, fact.line) for fact in printed[:4]),
        remedies=(_look_closer((), step),),
        measured=f"{figure} {value} in {sum(fact.fields.get('count', 1) for fact in printed):,} lines",
    )


def _clean(run: RunEvidence | None, metrics: Metrics | None) -> Finding:
    if metrics is not None and metrics.records:
        summary = f"All {metrics.records} recorded losses and gradient norms are finite."
        return Finding(cause=CAUSE, status="ruled_out", summary=summary, measured=f"0 of {metrics.records} records")
    what = "the run ended before its first record" if run is not None else "no metrics are among the evidence"
    missing = (
        "train.log_every=1" if run is not None else "a dtk run records losses; or torch.autograd.set_detect_anomaly"
    )
    return Finding(cause=CAUSE, status="undecided", summary=f"Not decided: {what}.", missing=missing)


def _item(evidence: Evidence, run: RunEvidence, seen: Seen, detail: str) -> EvidenceItem:
    parameter = seen.event.get("parameter")
    file = evidence.relative(RunPaths(run.root).events(seen.rank))
    return EvidenceItem("events", file, f"{detail}{f', first in {parameter}' if parameter else ''}")


def _cost(step: int, metrics: Metrics | None) -> Cost | None:
    """Every step from the first bad one on is lost."""
    if metrics is None or metrics.last_step is None or metrics.last_step < step:
        return None
    return Cost(float(metrics.last_step - step + 1), "steps lost")


def _remedies(run: RunEvidence, metrics: Metrics | None, step: int, ranks: tuple[int, ...]) -> tuple[Remedy, ...]:
    """What usually helps, by what is known of the run; one rank alone speaks for its data or its device."""
    found: list[Remedy] = []
    if ranks:
        who = ", ".join(map(str, ranks[:8]))
        change = f"look at the samples of rank {who} in step {step}, then at that rank's device (nvidia-smi -q, dmesg)"
        found.append(Remedy("code", change, "the other ranks ran the same code on other samples without it"))
    if run.get("precision.compute_dtype") == "float16":
        found.append(Remedy("override", "precision=bf16", "float16 ends at 65504; bfloat16 has the range of float32"))
    if run.get("train.clip_norm", 0) is None and not run.get("optimizer.in_backward"):
        found.append(Remedy("override", "train.clip_norm=1.0", "gradients are not clipped"))
    rate = run.get("optimizer.lr")
    rose = metrics is not None and metrics.last_finite is not None and metrics.last_finite > RISING * metrics.lowest
    if isinstance(rate, float) and (rose or not ranks):
        why = "the loss had risen before it broke" if rose else "too high a learning rate is the most frequent reason"
        found.append(Remedy("override", f"optimizer.lr={rate / 2:g}", why))
    return (*found, _look_closer(ranks, step))


def _look_closer(ranks: tuple[int, ...], step: int | None) -> Remedy:
    which = f" around step {step}" if step is not None else ""
    change = f"with torch.autograd.set_detect_anomaly(True):{which}"
    return Remedy("code", change, "it names the operation whose backward is the first to return NaN")
