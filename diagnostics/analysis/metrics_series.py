"""The metrics of a dtk run, in the form that the causes of numerics use."""

from msgspec import Struct

from diagnostics.contract.artifacts import RunPaths
from diagnostics.evidence.budget import disk_bytes
from diagnostics.evidence.metrics import Metrics
from diagnostics.evidence.model import Evidence, Problem
from diagnostics.evidence.readers import step_records


class Figures(Struct, frozen=True):
    """The input of the causes of numerics."""

    evidence: Evidence
    metrics: Metrics | None
    """None if metrics.jsonl is missing or damaged."""


def read(evidence: Evidence) -> Figures:
    """Return the content of the run's metrics.jsonl; a file without any step becomes a problem under coverage."""
    if evidence.run is None:
        return Figures(evidence, None)
    recorded = next((fact.fields["metrics"] for fact in evidence.facts if fact.kind == step_records.METRICS), None)
    path = RunPaths(evidence.run.root).metrics
    file = evidence.relative(path)
    if recorded is None and disk_bytes(path) and all(problem.file != file for problem in evidence.problems):
        evidence.problems.append(Problem(step_records.KIND, file, "no_steps"))
    return Figures(evidence, recorded)
