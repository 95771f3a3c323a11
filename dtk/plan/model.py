"""The report of a plan as typed values, and its JSON. Computes no plan."""

from dataclasses import asdict, dataclass
from typing import Any

from dtk.plan.compare import Comparison, FittingLayout, Row, Search
from dtk.plan.formulas.holding import STAGES, Training
from dtk.plan.formulas.prediction import Prediction
from dtk.plan.job import Difference
from dtk.plan.solve import Largest, Point

SCHEMA = "dtk.plan.report/1"


@dataclass(frozen=True, slots=True)
class Check:
    """Comparison of both engines on the same job, with kernels that both support: the CPU's."""

    closed_form: Prediction
    simulated: Prediction
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The result of `dtk plan`."""

    job: tuple[str, ...]
    """The overrides as typed."""
    plan: Prediction
    local_size: int
    """Ranks per node; 0 if unknown."""
    compute_dtype: str
    """Dtype of the matrix products: float32, tf32, bfloat16 or float16; empty if unknown."""
    check: "Check | None" = None
    comparison: Comparison | None = None
    search: Search | None = None
    scaling: tuple[Point, ...] = ()
    models: tuple[Largest, ...] = ()
    batch: Largest | None = None
    trainings: tuple[Training, ...] = ()
    """Rows of the memory table."""
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Settings that probably differ from those of the real run, so that the figures would not apply."""


def as_json(report: PlanReport) -> dict[str, Any]:
    """Return plain values; sections that were not requested are absent."""
    plain: dict[str, Any] = {"schema": SCHEMA, "job": list(report.job), "local_size": report.local_size}
    peak_flops = None if report.plan.time is None else report.plan.time.peak_flops
    plain["precision"] = {"compute_dtype": report.compute_dtype, "peak_flops": peak_flops}
    plain |= {"plan": report.plan.as_json(), "notes": list(report.notes), "doubts": list(report.doubts)}
    if (check := report.check) is not None:
        engines = {"closed_form": check.closed_form.as_json(), "simulated": check.simulated.as_json()}
        plain["check"] = {**engines, "differences": [asdict(difference) for difference in check.differences]}
    if (compared := report.comparison) is not None:
        recommended, fastest = compared.recommended, compared.fastest
        plain["compare"] = {
            "recommended": recommended and recommended.variant.name,
            "overrides": recommended and list(recommended.overrides),
            "fastest": fastest and fastest.variant.name,
            "reasons": list(compared.reasons),
            "rows": [
                {"name": row.variant.name, **_planned(row), "problem": row.problem or None} for row in compared.rows
            ],
        }
    if (search := report.search) is not None:
        counts = {name: getattr(search, name) for name in ("layouts", "too_large", "too_slow")}
        layouts = [_planned(layout) for layout in search.fitting]
        plain["search"] = {**counts, "reasons": list(search.reasons), "found": layouts}
    if report.scaling:
        plain["scaling"] = [
            {"world_size": point.world_size, "plan": _plan(point), "problem": point.problem or None}
            for point in report.scaling
        ]
    if report.models:
        plain["max_model"] = [{"what": largest.what, **_planned(largest)} for largest in report.models]
    if report.batch is not None:
        plain["max_batch"] = {"what": report.batch.what, **_planned(report.batch)}
    if report.trainings:
        ranks = report.plan.dp_size or report.plan.world_size
        plain["memory_table"] = [
            {
                **asdict(training),
                "per_parameter": training.per_parameter,
                "rank_bytes": [training.rank_bytes(report.plan.parameters, stage, ranks) for stage in STAGES],
            }
            for training in report.trainings
        ]
    return plain


def _planned(solution: Row | FittingLayout | Largest) -> dict[str, Any]:
    return {"overrides": list(solution.overrides), "plan": _plan(solution)}


def _plan(solution: Row | FittingLayout | Largest | Point) -> dict[str, Any] | None:
    return None if solution.prediction is None else solution.prediction.as_json()
