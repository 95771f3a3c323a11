"""The parity gate: whether runs did the same work. Each condition is same, different, or unknown (not recorded)."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from msgspec.structs import replace

from diagnostics.contract.formatting import joined
from diagnostics.runs.records import as_mapping
from dtk.compare.model import MASK, Check, RunRecord, Variant

TOLERANCE = {"float32": 1e-3, "tf32": 5e-3, "bfloat16": 2e-2, "float16": 2e-2}
"""Maximum relative difference of two losses, by the dtype of the matrix products."""
ROUNDING_HOOKS = {"none": 0.0, "fp16": 2e-2, "bf16": 2e-2, "int8": 2e-2}
"""Communication hook that only rounds each element of a gradient -> tolerance. Any other hook drops part of the
gradients, and rounding does not explain the differences of losses that follow."""
EXACT_STEPS = 20  # Losses up to here are compared one by one, later ones by stretches, as rounding grows.
STRETCH, LATER = 20, 2.5  # Length of a stretch whose mean losses are compared, and the factor of its tolerance.
_SHOWN = 60  # Maximum number of characters of a value; chosen for a line of text.

Value = Callable[[RunRecord], Any]
Sums = Mapping[int, tuple[int, int]]  # As returned by `_sums`.


def task(run: RunRecord) -> str:
    """Return the task that the run trains; runs of different tasks are not comparable."""
    data = run.manifest.get("data")
    classes = isinstance(data, dict) and ("classes" in data or "labels" in data)
    classifies = classes or run.get("data.name") == "classification"
    return "classification" if classifies else "language modelling"


def checks(variants: Sequence[Variant], reference: RunRecord, *, weak: bool, tolerance: float | None) -> list[Check]:
    """Return every condition, over all compared runs.

    With `weak` the global batch grows with the ranks: its effects are not compared. `tolerance` None: by the dtype.
    """
    runs = [(variant.label, run) for variant in variants for run in variant.compared]
    # One data-parallel rank, of which parity.json says null, fits every reduction.
    reduced = [(label, run) for label, run in runs if run.parity.get("reduce_dtype", "") is not None]
    reduction = ("reduce_dtype", "type of the gradient reduction")

    def optimizer(run: RunRecord) -> Mapping[str, Any]:
        """Return the section without the implementation of the update, such as fused, which has the same result."""
        return {k: v for k, v in as_mapping(run.config.get("optimizer")).items() if k not in ("fused", "in_backward")}

    def trained_tokens(run: RunRecord) -> int | None:
        return (last := run.windows[-1]).tokens and last.tokens // max(last.last, 1)

    results = [
        _model(runs),
        _equal("data", "data and tokenizer", runs, _data),
        _equal("weights", "initial weights (hash)", runs, lambda run: run.parity.get("initial_weights_hash")),
        _equal("master_dtype", "master weights", runs, lambda run: run.parity.get("master_dtype")),
        _equal("compute_dtype", "compute type", runs, lambda run: run.parity.get("compute_dtype")),
        _equal(*reduction, reduced, lambda run: run.parity.get("reduce_dtype"))
        if reduced
        else Check(*reduction, "same", "one data-parallel rank: nothing is reduced"),
        _equal("clipping", "gradient clipping", runs, lambda run: ("clip_norm", run.get("train.clip_norm"))),
        _equal("optimizer", "optimizer", runs, optimizer),
        _equal("schedule", "learning rate", runs, _schedule),
        _equal("fault", "injected fault", runs, lambda run: run.get("fault.name", "none")),
    ]
    if not weak:
        tokens = _equal("tokens", "global tokens per step", runs, trained_tokens)
        if tokens.status == "same":
            tokens = replace(tokens, detail=f"{int(tokens.detail):,}")
        results[2:2] = [tokens, _samples(runs, reference)]
        results.append(_losses(runs, reference, tolerance))
    if len(runs) > 1:
        return results
    only = f"only {runs[0][1].name} has figures"  # One run is the same as nothing.
    return [replace(check, status="unknown", detail=only) for check in results]


def hook_of(run: RunRecord) -> str:
    """Return the gradient compression, `none` without one."""
    if run.get("strategy.quantized_weights") or run.get("strategy.quantized_gradients"):
        return "int8"
    return str(run.get("strategy.communication_hook") or "none").lower()


def tolerance_of(run: RunRecord) -> float | None:
    """Return the relative difference of losses that rounding may explain; None if more than rounding changes them."""
    if (hooked := ROUNDING_HOOKS.get(hook_of(run))) is None:
        return None
    dtype = "tf32" if run.get("precision.tf32") else str(run.get("precision.compute_dtype", "float32"))
    return max(TOLERANCE.get(dtype, TOLERANCE["bfloat16"]), hooked)


def _equal(key: str, title: str, runs: Sequence[tuple[str, RunRecord]], value: Value) -> Check:
    """Compare one value of all runs; one that is None was not recorded."""
    values = [(label, run, value(run)) for label, run in runs]
    recorded = [entry for entry in values if entry[2] is not None]
    if len({_key(value) for _, _, value in recorded}) > 1:
        return Check(key, title, "differs", _apart(recorded))
    if len(recorded) < len(values):
        missing = sorted({label for label, _, value in values if value is None})
        return Check(key, title, "unknown", f"not recorded by {', '.join(missing)}")
    return Check(key, title, "same", _shown(recorded[0][2]))


def _apart(values: Sequence[tuple[str, RunRecord, Any]]) -> str:
    """Return `ddp: 1.0; fsdp: none`, for mappings only the differences, or runs where repeats of a variant differ."""
    labels = {label for label, _, _ in values}
    repeats_differ = len(labels) < len({(label, _key(value)) for label, _, value in values})
    by_text: dict[str, list[str]] = {}
    for label, run, value in values:
        text = _shown(value)
        if all(isinstance(each, Mapping) for _, _, each in values):
            keys = dict.fromkeys(key for _, _, each in values for key in each)
            differ = [key for key in keys if len({_key(each.get(key)) for _, _, each in values}) > 1]
            text = ", ".join(f"{key}={_shown(value.get(key))}" for key in differ[:4])
        by_text.setdefault(text, []).append(f"{label} ({run.name})" if repeats_differ else label)
    return "; ".join(f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in by_text.items())


def _shown(value: Any) -> str:
    if isinstance(value, tuple):  # A name whose value may be absent.
        return f"{value[0]}={_shown(value[1])}"
    if isinstance(value, Mapping):
        value = value.get("name", "") if "name" in value else ", ".join(f"{k}={v}" for k, v in list(value.items())[:4])
    return "none" if value is None else str(value)[:_SHOWN]


def _key(value: Any) -> str:
    return repr(sorted(value.items(), key=str)) if isinstance(value, Mapping) else repr(value)


def _model(runs: Sequence[tuple[str, RunRecord]]) -> Check:
    """Compare the models by configuration, and by parameters if the summaries have them."""
    configured = _equal("model", "model", runs, lambda run: as_mapping(run.config.get("model")))
    if configured.status == "differs":
        return configured
    counted = _equal("model", "model", runs, lambda run: run.figures.get("parameters"))
    if counted.status == "same":
        return configured
    what = "parameters" if counted.status == "differs" else "same configuration; number of parameters"
    return Check("model", "model", counted.status, f"{what} {counted.detail}")


def _data(run: RunRecord) -> Mapping[str, Any] | None:
    """Return what determines the samples; the content is identified by its hash where there is one, not by its path."""
    data = run.manifest.get("data")
    if not isinstance(data, dict):
        return None
    facts = {key: value for key, value in data.items() if key not in ("source", "path")}
    return {**facts, "sequence_length": run.get("data.sequence_length")}


def _schedule(run: RunRecord) -> Mapping[str, Any]:
    section = dict(as_mapping(run.config.get("schedule")))
    return section if section.get("name") == "constant" else {**section, "train.steps": run.get("train.steps")}


def _samples(runs: Sequence[tuple[str, RunRecord]], reference: RunRecord) -> Check:
    """Compare the sums of mixed (step, sample id) pairs between the steps that both runs logged."""
    key, title = "samples", "sample ids"
    if not (expected := _sums(reference)):
        return Check(key, title, "unknown", f"not recorded by {reference.name}")
    different, missing, covered = [], [], []
    for label, run in runs:
        sums = _sums(run)
        steps, wrong, last = _compare_sums(expected, sums)
        if not steps:
            why = f"{label} and {reference.name} recorded no common range of steps"
            missing.append(why if sums else f"not recorded by {label}")
        elif wrong is not None:
            different.append(f"{label}: different from {reference.name} from step {wrong} on at the latest")
        covered.append((steps, last))
    if different:
        return Check(key, title, "differs", "; ".join(dict.fromkeys(different)))
    if missing:
        return Check(key, title, "unknown", "; ".join(dict.fromkeys(missing)))
    steps, last = min(covered)
    which = f"all of the first {last:,} steps" if steps == last else f"{steps:,} of the first {last:,} steps"
    return Check(key, title, "same", f"the same in {which}")


def _compare_sums(expected: Sums, sums: Sums) -> tuple[int, int | None, int]:
    """Return the number of steps compared, the first logged step where samples differ, and the last step compared."""
    steps, last = 0, 0
    for begin, end in pairwise(sorted(expected.keys() & sums.keys())):
        (stretch, low), (stretch_at_end, high) = expected[begin], expected[end]
        (run_begin, run_low), (run_end, run_high) = sums[begin], sums[end]
        if stretch != stretch_at_end or run_begin != run_end:
            continue  # A record between them is lost.
        steps, last = steps + end - begin, end
        if (high - low - run_high + run_low) & MASK:
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
        total, at = (total + window.samples) & MASK, window.last
        sums[at] = stretch, total
    return sums


def _losses(runs: Sequence[tuple[str, RunRecord]], reference: RunRecord, tolerance: float | None) -> Check:
    """Compare the losses of all runs with those of the reference, within what rounding explains."""
    key, title = "losses", "losses"
    tolerances = [tolerance_of(run) if tolerance is None else tolerance for _, run in runs]
    allowed = max(value for value in tolerances if value is not None) if None not in tolerances else math.inf
    apart: list[str] = []
    worst, common = 0.0, set[int]()
    for label, run in runs:
        for record in (run, reference):
            bad = next((window.last for window in record.windows if window.loss is None), None)
            if bad is not None:
                apart.append(f"{label if record is run else reference.name}: not finite at step {bad}")
        if run is reference:
            continue
        others = {window.last: window.loss for window in run.windows}
        expected = [(window.last, window.loss) for window in reference.windows if window.loss is not None]
        pairs = [(step, loss, own) for step, loss in expected if (own := others.get(step)) is not None]
        if not pairs:
            return Check(key, title, "unknown", f"{label} and {reference.name} logged no step in common")
        common.add(len(pairs))
        gap = _furthest(pairs)
        worst = max(worst, gap.share)
        if gap.share > allowed * gap.factor:
            apart.append(
                f"{label}: {gap.loss:.4f} against {gap.reference:.4f} at step {gap.step} "
                f"({gap.share:.2%} apart, allowed: {allowed * gap.factor:.2%})"
            )
    if apart:
        return Check(key, title, "differs", "; ".join(dict.fromkeys(apart)))
    if not common:
        return Check(key, title, "unknown", f"only {reference.name} has figures")
    counts = " to ".join(f"{count:,}" for count in sorted({min(common), max(common)}))
    detail = f"at most {worst:.3%} apart over {counts} steps that both logged"
    if math.isfinite(allowed):
        return Check(key, title, "same", f"{detail}; allowed: {allowed:.2%}")
    hooks = joined(sorted({hook_of(run) for _, run in runs} - ROUNDING_HOOKS.keys()))
    why = f"communication_hook={hooks} drops part of the gradients, so no tolerance for rounding applies"
    return Check(key, title, "unknown", f"{detail}; {why}: --loss-tolerance sets one")


class _Gap(NamedTuple):
    share: float
    """Relative difference of the losses."""
    factor: float
    """Multiplier of the tolerance there."""
    step: int
    reference: float
    loss: float


def _furthest(pairs: Sequence[tuple[int, float, float]]) -> _Gap:
    """Return the largest difference relative to its tolerance: of single steps first, later of means over stretches."""

    def gap(step: int, reference: float, loss: float, factor: float) -> _Gap:
        return _Gap(abs(reference - loss) / max(abs(reference), 1e-6), factor, step, reference, loss)

    gaps = [gap(*pair, 1.0) for pair in pairs[:EXACT_STEPS]]
    for at in range(EXACT_STEPS, len(pairs), STRETCH):
        part = pairs[min(at, len(pairs) - STRETCH) :][:STRETCH]
        gaps.append(gap(part[-1][0], fmean(a for _, a, _ in part), fmean(b for _, _, b in part), LATER))
    return max(gaps, key=lambda worst: worst.share / worst.factor if math.isfinite(worst.share) else math.inf)
