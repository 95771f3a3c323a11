"""The parity gate: whether runs did the same work, so that their speed may be compared at all.

Every condition is `same`, `differs` or `unknown` (not recorded). Owns the tolerance on losses.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from dtk.compare.formatting import percent_text
from dtk.compare.model import Check, RunRecord, Variant, mapping

TOLERANCE = {"float32": 1e-3, "tf32": 5e-3, "bfloat16": 2e-2, "float16": 2e-2}
"""Largest relative difference of two losses, by the type of the matrix products."""
EXACT_STEPS = 20
"""Losses are held against each other one by one up to here; rounding grows with every step, so later by stretches."""
STRETCH, LATER = 20, 2.5
"""Steps whose mean loss is compared after that, and by how much more it may differ."""
_SHOWN = 60
_MASK = (1 << 64) - 1

Value = Callable[[RunRecord], Any]


def task(run: RunRecord) -> str:
    """Return the task that the run trains; runs of different tasks have no figure in common."""
    data = run.manifest.get("data")
    classes = isinstance(data, dict) and ("classes" in data or "labels" in data)
    classifies = classes or run.get("data.name") == "classification"
    return "classification" if classifies else "language modelling"


def checks(variants: Sequence[Variant], reference: RunRecord, *, weak: bool, tolerance: float | None) -> list[Check]:
    """Every condition, over all compared runs.

    Args:
        variants: with compared runs.
        reference: the run that the others are held against.
        weak: the global batch grows with the ranks, so what follows from it is not compared.
        tolerance: relative, of losses; None = by the number format.
    """
    runs = [(variant.label, run) for variant in variants for run in variant.compared]
    found = [
        _model(runs),
        _equal("data", "data and tokenizer", runs, _data),
        _equal("weights", "initial weights (hash)", runs, lambda run: run.parity.get("initial_weights_hash")),
        _equal("master_dtype", "master weights", runs, lambda run: run.parity.get("master_dtype")),
        _equal("compute_dtype", "compute type", runs, lambda run: run.parity.get("compute_dtype")),
        _reduction(runs),
        _equal("clipping", "gradient clipping", runs, lambda run: ("clip_norm", run.get("train.clip_norm"))),
        _equal("optimizer", "optimizer", runs, _optimizer),
        _equal("schedule", "learning rate", runs, _schedule),
        _equal("fault", "injected fault", runs, lambda run: run.get("fault.name", "none")),
    ]
    if not weak:
        found[2:2] = [_tokens(runs), _samples(runs, reference)]
        found.append(_losses(runs, reference, tolerance))
    if len(runs) > 1:
        return found
    only = f"only {runs[0][1].name} has figures"  # One run is the same as nothing.
    return [replace(check, status="unknown", detail=only) for check in found]


def tolerance_of(run: RunRecord) -> float:
    """Relative difference of losses that rounding may explain."""
    dtype = "tf32" if run.get("precision.tf32") else str(run.get("precision.compute_dtype", "float32"))
    hook = str(run.get("strategy.communication_hook") or "none")
    lossy = TOLERANCE["bfloat16"] if hook not in ("none", "None") else 0.0
    return max(TOLERANCE.get(dtype, TOLERANCE["bfloat16"]), lossy)


def _equal(key: str, title: str, runs: Sequence[tuple[str, RunRecord]], value: Value) -> Check:
    values = [(label, run, value(run)) for label, run in runs]
    known = [one for one in values if one[2] is not None]
    if len({_key(one[2]) for one in known}) > 1:
        return Check(key, title, "differs", _apart([(label, run, found) for label, run, found in known]))
    if len(known) < len(values):
        missing = sorted({label for label, _, found in values if found is None})
        return Check(key, title, "unknown", f"not recorded by {', '.join(missing)}")
    return Check(key, title, "same", _shown(known[0][2]) if known else "")


def _apart(values: Sequence[tuple[str, RunRecord, Any]]) -> str:
    """`ddp: 1.0; fsdp: none`, with only what differs of mappings; runs where repeats of one variant differ."""
    first = values[0][2]
    by_value: dict[str, list[str]] = {}
    several = len({label for label, _, _ in values}) < len({(label, _key(found)) for label, _, found in values})
    for label, run, found in values:
        shown = _difference(found, first, [value for _, _, value in values])
        by_value.setdefault(shown, []).append(f"{label} ({run.name})" if several else label)
    return "; ".join(f"{', '.join(dict.fromkeys(names))}: {shown}" for shown, names in by_value.items())


def _difference(value: Any, first: Any, every: Sequence[Any]) -> str:
    if isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in every):
        keys = [
            key for key in dict.fromkeys(k for one in every for k in one) if len({_key(o.get(key)) for o in every}) > 1
        ]
        return ", ".join(f"{key}={_shown(value.get(key))}" for key in keys[:4])
    if isinstance(value, tuple) and isinstance(value[0], Mapping):
        at = next((n for n in range(len(value)) if len({_key(one[n]) for one in every}) > 1), 0)
        return _difference(value[at], first[at], [one[at] for one in every])
    return _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return f"{value[0]}={_shown(value[1])}"
    if isinstance(value, tuple) and isinstance(value[0], Mapping):
        value = value[0]
    if isinstance(value, Mapping):
        shown = value.get("name", "") if "name" in value else ", ".join(f"{k}={v}" for k, v in list(value.items())[:4])
        return str(shown)[:_SHOWN]
    return "none" if value is None else str(value)[:_SHOWN]


def _key(value: Any) -> str:
    return repr(sorted(value.items(), key=str)) if isinstance(value, Mapping) else repr(value)


def _model(runs: Sequence[tuple[str, RunRecord]]) -> Check:
    """By its configuration, and by its parameters where the summaries tell them."""
    configured = _equal("model", "model", runs, lambda run: mapping(run.config.get("model")))
    if configured.status == "differs":
        return configured
    counted = _equal("model", "model", runs, lambda run: run.figures.get("parameters"))
    if counted.status == "same":
        return configured
    told = "parameters" if counted.status == "differs" else "configured alike; number of parameters"
    return Check("model", "model", counted.status, f"{told} {counted.detail}")


def _data(run: RunRecord) -> Mapping[str, Any] | None:
    """Return what determines the samples; the content is identified by its hash where there is one, not by its path."""
    data = run.manifest.get("data")
    if not isinstance(data, dict):
        return None
    kept = {key: value for key, value in data.items() if key not in ("source", "path")}
    kept["sequence_length"] = run.get("data.sequence_length")
    return kept


def _optimizer(run: RunRecord) -> Mapping[str, Any]:
    """Without how the update is computed: fused or not, it is the same."""
    return {k: v for k, v in mapping(run.config.get("optimizer")).items() if k not in ("fused", "in_backward")}


def _schedule(run: RunRecord) -> Mapping[str, Any]:
    """Return the settings of the schedule, with the number of steps unless the schedule is constant."""
    section = dict(mapping(run.config.get("schedule")))
    return section if section.get("name") == "constant" else {**section, "train.steps": run.get("train.steps")}


def _reduction(runs: Sequence[tuple[str, RunRecord]]) -> Check:
    """One rank alone reduces nothing, so it fits every type."""
    several = [one for one in runs if one[1].world_size > 1]
    title = "type of the gradient reduction"
    if not several:
        return Check("reduce_dtype", title, "same", "one rank: nothing is reduced")
    return _equal("reduce_dtype", title, several, lambda run: run.parity.get("reduce_dtype"))


def _tokens(runs: Sequence[tuple[str, RunRecord]]) -> Check:
    """As trained, not as configured."""

    def per_step(run: RunRecord) -> int | None:
        last = run.windows[-1]
        return None if last.tokens is None else last.tokens // max(last.last, 1)

    check = _equal("tokens", "global tokens per step", runs, per_step)
    if check.status == "same":
        return Check(check.key, check.title, "same", f"{int(check.detail):,}")
    return check


def _samples(runs: Sequence[tuple[str, RunRecord]], reference: RunRecord) -> Check:
    """Compare the sums of mixed (step, sample id) pairs between the steps that both runs logged."""
    key, title = "samples", "sample ids"
    ours = _sums(reference)
    if not ours:
        return Check(key, title, "unknown", f"not recorded by {reference.name}")
    apart, missing, covered = [], [], []
    for label, run in runs:
        theirs = _sums(run)
        steps, wrong, last = _held(ours, theirs)
        if not steps:
            why = f"{label} and {reference.name} recorded no stretch of steps in common"
            missing.append(why if theirs else f"not recorded by {label}")
        elif wrong is not None:
            apart.append(f"{label}: others than {reference.name} from step {wrong} on at the latest")
        covered.append((steps, last))
    if apart:
        return Check(key, title, "differs", "; ".join(dict.fromkeys(apart)))
    if missing:
        return Check(key, title, "unknown", "; ".join(dict.fromkeys(missing)))
    steps, last = min(covered)
    told = f"all of the first {last:,} steps" if steps == last else f"{steps:,} of the first {last:,} steps"
    return Check(key, title, "same", f"the same in {told}")


def _held(ours: Mapping[int, tuple[int, int]], theirs: Mapping[int, tuple[int, int]]) -> tuple[int, int | None, int]:
    """Return the number of steps compared, the first logged step where samples differ, and the last step compared."""
    steps, last = 0, 0
    for begin, end in pairwise(sorted(ours.keys() & theirs.keys())):
        (part, low), (same, high) = ours[begin], ours[end]
        (their_part, their_low), (their_same, their_high) = theirs[begin], theirs[end]
        if part != same or their_part != their_same:
            continue  # Between them a record is lost.
        steps, last = steps + end - begin, end
        if (high - low - their_high + their_low) & _MASK:
            return steps, end, last
    return steps, None, last


def _sums(run: RunRecord) -> dict[int, tuple[int, int]]:
    """Step -> (stretch without a lost record, sum over all samples of it up to that step)."""
    stretch, total, at = 0, 0, -1
    sums: dict[int, tuple[int, int]] = {}
    for window in run.windows:
        if window.samples is None:
            continue
        if window.first != at:
            stretch, total = stretch + 1, 0
            sums[window.first] = stretch, total
        total, at = (total + window.samples) & _MASK, window.last
        sums[at] = stretch, total
    return sums


def _losses(runs: Sequence[tuple[str, RunRecord]], reference: RunRecord, tolerance: float | None) -> Check:
    key, title = "losses", "losses"
    apart: list[str] = []
    worst, common = 0.0, set[int]()
    allowed = max(tolerance_of(run) for _, run in runs) if tolerance is None else tolerance
    for label, run in runs:
        for record in (run, reference):
            bad = next((one.last for one in record.windows if one.loss is None), None)
            if bad is not None:
                apart.append(f"{label if record is run else reference.name}: not finite at step {bad}")
        if run is reference:
            continue
        pairs = _pairs(reference, run)
        if not pairs:
            return Check(key, title, "unknown", f"{label} and {reference.name} logged no step in common")
        common.add(len(pairs))
        share, step, ours, theirs = _furthest(pairs)
        worst = max(worst, share)
        if share > allowed:
            apart.append(f"{label}: {theirs:.4f} against {ours:.4f} at step {step} ({percent_text(share, 2)} apart)")
    if apart:
        return Check(key, title, "differs", f"{'; '.join(dict.fromkeys(apart))}; allowed: {percent_text(allowed, 2)}")
    if not common:
        return Check(key, title, "unknown", f"only {reference.name} has figures")
    steps = " to ".join(f"{count:,}" for count in sorted({min(common), max(common)}))
    told = f"at most {percent_text(worst, 3)} apart over {steps} steps that both logged"
    return Check(key, title, "same", f"{told}; allowed: {percent_text(allowed, 2)}")


def _pairs(one: RunRecord, other: RunRecord) -> list[tuple[int, float, float]]:
    theirs = {window.last: window.loss for window in other.windows}
    return [
        (window.last, window.loss, loss)
        for window in one.windows
        if window.loss is not None and (loss := theirs.get(window.last)) is not None
    ]


def _furthest(pairs: Sequence[tuple[int, float, float]]) -> tuple[float, int, float, float]:
    """(largest relative difference, its step, both losses): of single steps first, later of stretches."""
    points = list(pairs[:EXACT_STEPS])
    scaled = [(abs(a - b) / max(abs(a), 1e-6), step, a, b) for step, a, b in points]
    for at in range(EXACT_STEPS, len(pairs), STRETCH):
        part = pairs[at : at + STRETCH]
        if len(part) < STRETCH:
            part = pairs[-STRETCH:]
        ours, theirs = fmean(a for _, a, _ in part), fmean(b for _, _, b in part)
        scaled.append((abs(ours - theirs) / max(abs(ours), 1e-6) / LATER, part[-1][0], ours, theirs))
    return max(scaled, key=lambda one: one[0] if math.isfinite(one[0]) else math.inf)
