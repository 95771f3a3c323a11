"""What the tests of the causes of a slow step share."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import Detection, Finding
from diagnostics.evidence.model import RunEvidence
from diagnostics.tree.arbitrate import arbitrate
from diagnostics.tree.built_in import built_in
from tests.trace_scenarios import SCENARIOS, Scenario
from tests.traits import recorded_traits

SICK = [one for one in SCENARIOS if one.cause]
HEALTHY = [one for one in SCENARIOS if not one.cause]


def scenario(name: str) -> Scenario:
    return next(one for one in SCENARIOS if one.name == name)


def roots(detection: Detection) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.cause, one.ranks) for one in arbitrate(built_in(), detection.findings).roots]


def status(detection: Detection) -> dict[str, str]:
    return {one.cause: one.status for one in detection.findings}


def finding_of(detection: Detection, cause: str) -> Finding:
    (finding,) = (one for one in detection.findings if one.cause == cause)
    return finding


def dtk_run(config: dict[str, Any]) -> RunEvidence:
    manifest = recorded_traits(config.get("strategy", {}).get("name", ""))
    return RunEvidence(Path("/run"), None, config, manifest, {}, {}, {}, {})
