"""A comparison as JSON: `dtk.comparison/1`. Units are in the names of keys or beside the figures."""

from typing import Any, cast

from diagnostics.report.jsonform import plain
from dtk.compare.model import SCHEMA, Comparison, Figure, Variant
from dtk.compare.report import headline
from dtk.compare.statistics import METHOD

_UNKNOWN = {"median": None, "low": None, "high": None, "count": 0}  # The fields of an estimate without values.


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return it as plain values."""
    values = {"schema": SCHEMA, "headline": headline(comparison), "intervals": METHOD, "parity": comparison.checks}
    values |= _fields(comparison, "comparable", "warmup_steps", "verdicts", "scaling", "grid", "notes")
    values["variants"] = list(map(_variant, comparison.variants))
    values["figures"] = list(map(_figure, comparison.figures))
    return cast(dict[str, Any], plain(values))


def _fields(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _variant(variant: Variant) -> dict[str, Any]:
    any_run, runs = variant.any, []
    for run in variant.runs:
        shown = {"id": run.name, "compared": run in variant.compared, "reason": run.reason or None}
        shown |= {"steps": run.windows[-1].last if run.windows else 0}
        shown |= {"initial_weights_hash": run.parity.get("initial_weights_hash")}
        shown |= _fields(run, "path", "state", "breakdown", "causes", "disturbances", "damage")
        runs.append(shown)
    return {
        "label": variant.label,
        "strategy": any_run.get("strategy.name"),
        "model": any_run.get("model.name"),
        "world_size": any_run.world_size,
        "global_batch_size": any_run.batch[0],
        "sequence_length": any_run.batch[1],
        "micro_batch_size": any_run.get("train.micro_batch_size"),
        "collectives": any_run.traffic,
        "runs": runs,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    cells = [_fields(cell, "variant", "batch", "ratio") | {"spread_of_steps": cell.spread} for cell in figure.cells]
    estimates = [_UNKNOWN if cell.estimate is None else plain(cell.estimate) for cell in figure.cells]
    described = _fields(figure, "key", "title", "unit", "definition", "less_is_better")
    return described | {"variants": [cell | estimate for cell, estimate in zip(cells, estimates, strict=True)]}
