"""The report as JSON: `dtk.report/1`, published as docs/report.schema.json."""

import json
import math
from dataclasses import asdict, is_dataclass
from typing import Any, cast

from msgspec import Struct, structs

from diagnostics.contract.findings import Finding, text_of
from diagnostics.contract.formatting import Phrase
from diagnostics.contract.secrets import masked
from diagnostics.report.model import SCHEMA, Report
from diagnostics.report.wording import worded

_OF_FINDING = ("confidence", "ranks", "victims", "group", "position", "step", "where", "cost", "evidence")
DEPTH = 32  # Chosen: maximum nesting of measures; deeper values become null.


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON values, in the order of the schema."""
    symptoms = report.waiting
    waiting = {"waiting": dict(zip(symptoms.__struct_encode_fields__, structs.astuple(symptoms)))} if symptoms else {}
    values = {
        "schema": SCHEMA,
        "source": report.source,
        "outcome": report.outcome,
        "world_size": report.world_size,
        "notes": report.notes,
        "root_causes": [_finding(report, finding) for finding in report.root_causes],
        "findings": [_finding(report, item.finding) | {"explained_by": item.explained_by} for item in report.findings],
        "suspicions": [{"title": report.title(item.cause), **structs.asdict(item)} for item in report.suspicions],
        "tree": worded(report.tree),
        "cut_sets": report.cut_sets,
        "measures": report.measures | waiting,
        "coverage": [
            {key: value for key, value in structs.asdict(kind).items() if key != "absent"} for kind in report.coverage
        ],
    }
    return cast(dict[str, Any], plain(values))


def text(value: Any) -> str:
    """Return strict JSON (no NaN, ASCII) with secrets masked and a trailing newline, as written by every command."""
    return json.dumps(masked(plain(value)), indent=2, allow_nan=False) + "\n"


def plain(value: Any, depth: int = 0) -> Any:
    """Convert a value to JSON: keys to strings, non-finite numbers to null, other objects to their text."""
    if depth > DEPTH:
        return None
    if isinstance(value, Phrase):
        return str(value)
    if isinstance(value, Struct):
        value = structs.asdict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        ordered = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [plain(item, depth + 1) for item in ordered]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _finding(report: Report, finding: Finding) -> dict[str, Any]:
    text = text_of(finding)
    about = {"cause": finding.cause, "title": report.title(finding.cause), "status": finding.verdict}
    own = {name: getattr(finding, name) for name in _OF_FINDING}
    texts = {"remedies": text.remedies, "measured": text.measured, "missing": text.missing}
    return {**about, "summary": text.summary, **own, **texts}
