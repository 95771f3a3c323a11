"""A comparison as JSON: `dtk.comparison/1`. Units are in the names of keys or beside the figures."""

from typing import Any

from msgspec.structs import asdict

from dtk.compare.model import SCHEMA, Comparison, Figure, Variant
from dtk.compare.report import headline
from dtk.compare.statistics import METHOD

_UNKNOWN = {"median": None, "low": None, "high": None, "count": 0}  # The fields of an estimate without values.


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return it as plain values."""
    return {
        "schema": SCHEMA,
        "comparable": comparison.comparable,
        "headline": headline(comparison),
        "warmup_steps": comparison.warmup_steps,
        "intervals": METHOD,
        "parity": [asdict(check) for check in comparison.checks],
        "variants": [_variant(variant) for variant in comparison.variants],
        "figures": [_figure(figure) for figure in comparison.figures],
        "verdicts": list(comparison.verdicts),
        "scaling": [asdict(point) for point in comparison.scaling],
        "grid": [asdict(cell) for cell in comparison.grid],
        "notes": list(comparison.notes),
    }


def _variant(variant: Variant) -> dict[str, Any]:
    any_run = variant.any
    return {
        "label": variant.label,
        "strategy": any_run.get("strategy.name"),
        "model": any_run.get("model.name"),
        "world_size": any_run.world_size,
        "global_batch_size": any_run.batch[0],
        "sequence_length": any_run.batch[1],
        "micro_batch_size": any_run.get("train.micro_batch_size"),
        "collectives": [asdict(traffic) for traffic in any_run.traffic],
        "runs": [
            {
                "id": run.name,
                "path": str(run.path),
                "state": run.state,
                "reason": run.reason or None,
                "compared": run in variant.compared,
                "steps": run.windows[-1].last if run.windows else 0,
                "initial_weights_hash": run.parity.get("initial_weights_hash"),
                "breakdown": None if run.breakdown is None else asdict(run.breakdown),
                "causes": list(run.causes),
                "disturbances": [asdict(disturbance) for disturbance in run.disturbances],
                "damage": list(run.damage),
            }
            for run in variant.runs
        ],
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        **{key: getattr(figure, key) for key in ("key", "title", "unit", "definition", "less_is_better")},
        "variants": [
            {
                "variant": cell.variant,
                "batch": cell.batch,
                **(_UNKNOWN if cell.estimate is None else asdict(cell.estimate)),
                "ratio": None if cell.ratio is None else asdict(cell.ratio),
                "spread_of_steps": None if cell.spread is None else list(cell.spread),
            }
            for cell in figure.cells
        ],
    }
