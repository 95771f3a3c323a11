"""What the tests of the causes of a slow step share."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import Detection, Finding
from diagnostics.evidence.model import RunEvidence
from diagnostics.tree.arbitrate import arbitrate
from diagnostics.tree.load import built_in
from tests.trace_scenarios import SCENARIOS, Scenario
from tests.traits import recorded_traits

SICK = [scenario for scenario in SCENARIOS if scenario.cause]
HEALTHY = [scenario for scenario in SCENARIOS if not scenario.cause]


def scenario(name: str) -> Scenario:
    return next(item for item in SCENARIOS if item.name == name)


def roots(detection: Detection) -> list[tuple[str, tuple[int, ...]]]:
    return [(root.cause, root.ranks) for root in arbitrate(built_in(), detection.findings).roots]


def status(detection: Detection) -> dict[str, str]:
    return {finding.cause: finding.status for finding in detection.findings}


def finding_of(detection: Detection, cause: str) -> Finding:
    (finding,) = (item for item in detection.findings if item.cause == cause)
    return finding


def dtk_run(config: dict[str, Any]) -> RunEvidence:
    manifest = recorded_traits(config.get("strategy", {}).get("name", ""))
    return RunEvidence(Path("/run"), None, config, manifest, {}, {}, {}, {})
