"""Findings about the memory of a job, by the causes of this family."""

from pathlib import Path
from typing import Any

from diagnostics.analysis.memory.measures import read
from diagnostics.causes.registry import Registry, built_in
from diagnostics.contract.findings import Finding, text_of
from diagnostics.diagnose import decide
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence

CAUSES = tuple(cause for cause in built_in() if cause.id.startswith("memory."))


def decided(evidence: Evidence) -> dict[str, Finding]:
    result, _ = decide(Registry(CAUSES), evidence, lambda text: None)
    return {item.cause.removeprefix("memory."): item for item in result}


def findings(folder: Path) -> dict[str, Finding]:
    return decided(gather(folder, Limits()))


def measures(folder: Path) -> dict[str, Any]:
    memory: dict[str, Any] = read(gather(folder, Limits())).measures()["memory"]
    return memory


def confirmed(findings: dict[str, Finding]) -> list[str]:
    for finding in findings.values():
        assert text_of(finding).summary
    return [name for name, value in findings.items() if value.status == "confirmed"]
