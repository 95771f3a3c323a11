"""The report as JSON: `dtk.report/1`, published as docs/report.schema.json."""

import json
import math
from dataclasses import asdict
from typing import Any, cast

from diagnostics.contract.findings import Finding, text_of
from diagnostics.contract.secrets import masked
from diagnostics.report.model import SCHEMA, Report

DEPTH = 32
"""Nesting of measures that is kept."""


def as_json(report: Report) -> dict[str, Any]:
    """JSON values, in the order of the schema."""
    return {
        "schema": SCHEMA,
        "source": report.source,
        "outcome": report.outcome,
        "world_size": report.world_size,
        "notes": list(report.notes),
        "root_causes": [_finding(report, finding) for finding in report.root_causes],
        "findings": [
            _finding(report, decided.finding) | {"explained_by": list(decided.explained_by)}
            for decided in report.findings
        ],
        "suspicions": [
            {"title": report.title(one.cause), **cast(dict[str, Any], plain(asdict(one)))} for one in report.suspicions
        ],
        "tree": plain(asdict(report.tree)),
        "cut_sets": [asdict(cut) | {"causes": list(cut.causes)} for cut in report.cut_sets],
        "measures": plain(report.measures | ({"waiting": asdict(report.waiting)} if report.waiting else {})),
        "coverage": [
            plain({name: value for name, value in asdict(one).items() if name != "absent"}) for one in report.coverage
        ],
    }


def dumps(report: Report) -> str:
    """Return the content of report.json."""
    return text(as_json(report))


def text(value: Any) -> str:
    """Return strict JSON (no NaN, ASCII) with a newline at its end: every command writes JSON this way."""
    return json.dumps(masked(plain(value)), indent=2, allow_nan=False) + "\n"


def plain(value: Any, depth: int = 0) -> Any:
    """Convert a value to what JSON can hold.

    Keys become strings, non-finite numbers become null, and other objects become their text.
    """
    if depth > DEPTH:
        return None
    if isinstance(value, dict):
        return {str(key): plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one, depth + 1) for one in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _finding(report: Report, finding: Finding) -> dict[str, Any]:
    values: dict[str, Any] = {
        "cause": finding.cause,
        "title": report.title(finding.cause),
        "status": finding.status,
        "summary": text_of(finding).summary,
        "confidence": finding.confidence,
        "ranks": finding.ranks,
        "victims": finding.victims,
        "group": finding.group and asdict(finding.group),
        "position": finding.position,
        "step": finding.step,
        "where": [asdict(where) for where in finding.where],
        "cost": finding.cost and asdict(finding.cost),
        "evidence": [asdict(item) for item in finding.evidence],
        "remedies": [asdict(remedy) for remedy in text_of(finding).remedies],
        "measured": text_of(finding).measured,
        "missing": text_of(finding).missing,
    }
    return cast(dict[str, Any], plain(values))
