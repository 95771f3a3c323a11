"""The diagnosis of a run's profiler window: the breakdown of a step, and the confirmed causes."""

from collections.abc import Callable
from pathlib import Path

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import Options, diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.report.measures import Breakdown, breakdown


def explain(
    folder: Path, limits: Limits, progress: Callable[[str], None] | None
) -> tuple[Breakdown | None, tuple[str, ...]]:
    """Return the breakdown of a profiled step and confirmed causes of slowness or memory; (None, ()) without traces."""
    if not any((folder / "traces").glob("rank_*")):
        return None, ()
    try:
        report = diagnose(folder, Options(limits=limits, progress=progress))
    except DiagnosticsError:
        return None, ()
    causes = [
        f"{report.title(decided.finding.cause)}: {text_of(decided.finding).summary}"
        for decided in report.findings
        if decided.finding.status == "confirmed" and decided.finding.cause.split(".")[0] in ("overlap", "memory")
    ]
    return breakdown(report.measures), tuple(causes)
