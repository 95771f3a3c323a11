"""report.json is what the published schema says, whatever the evidence holds."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diagnostics.report import jsonform
from diagnostics.report.model import Report
from tests.unit.diagnostics.report.samples import HOSTILE, finding, full, report

ROOT = Path(__file__).resolve().parents[4]
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())


def refuse(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize(
    "expected", [report(), full(), full(HOSTILE), report(finding("own.cause", status="undecided"))]
)
def test_the_schema_holds(expected: Report) -> None:
    text = jsonform.text(jsonform.as_json(expected))
    assert text.isascii()
    value = json.loads(text, parse_constant=refuse)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(value, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_the_schema_forbids_what_it_does_not_name() -> None:
    value = jsonform.as_json(full())
    value["root_causes"][0]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        jsonschema.validate(value, SCHEMA)


def test_the_content() -> None:
    value = jsonform.as_json(full())
    assert (value["schema"], value["source"], value["outcome"]) == ("dtk.report/1", "runs/job", "hung")
    first, second = value["root_causes"]
    assert (first["cause"], first["ranks"], first["victims"], first["position"]) == (
        "hang.collective_mismatch",
        [1],
        [0, 2, 3],
        41,
    )
    assert first["group"] == {"name": "0", "ranks": [0, 1, 2, 3], "desc": "default_pg"}
    assert first["where"][0]["line"] == 88 and first["remedies"][1]["change"] == "train.log_every=0"
    assert second["cause"] == "overlap.small_buckets"
    explained = {finding["cause"]: finding["explained_by"] for finding in value["findings"] if finding["explained_by"]}
    assert explained == {"hang.rank_raised": ["hang.collective_mismatch"]}
    coverage = {row["kind"]: row for row in value["coverage"]}
    assert coverage["flight"]["problems"] == [
        "/home/me/project/train.py: no dump: the pickle names a global (os.system) and was refused"
    ]


def test_figures_that_are_not_finite_are_null() -> None:
    assert jsonform.plain({1: [math.nan, math.inf, 2.5], "x": {(1, 2): {3}}}) == {
        "1": [None, None, 2.5],
        "x": {"(1, 2)": [3]},
    }


def test_a_measure_without_end_ends() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    assert json.dumps(jsonform.plain(endless)).count("again") < 64
