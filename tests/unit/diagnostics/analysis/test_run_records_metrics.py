"""The metrics that the causes of numerics are decided from, and what is said where there are none."""

import json
from pathlib import Path

from diagnostics.analysis.run_records import read
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.ring_bytes import run_files


def gathered(folder: Path, metrics: str) -> Evidence:
    Example(lambda: {**run_files({}), "metrics.jsonl": metrics}).write(folder)
    return gather(folder, Limits())


def test_the_recorded_steps_are_those_of_the_file(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 4.0 / step, "tokens": 64 * step} for step in (1, 2, 3)]
    evidence = gathered(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    figures = read(evidence)
    assert figures.metrics is not None and figures.evidence is evidence
    assert not any(problem.file == "metrics.jsonl" for problem in evidence.problems)


def test_a_file_without_any_step_is_reported_once(tmp_path: Path) -> None:
    evidence = gathered(tmp_path, "not a record\n{}\n")
    assert read(evidence).metrics is None
    assert read(evidence).metrics is None
    assert sum(problem.file == "metrics.jsonl" for problem in evidence.problems) == 1


def test_an_empty_file_and_another_job_have_no_metrics_and_no_problem(tmp_path: Path) -> None:
    empty = gathered(tmp_path, "")
    assert read(empty).metrics is None and not any(p.file == "metrics.jsonl" for p in empty.problems)
    assert read(Evidence(tmp_path, Limits())).metrics is None
