"""Runs preflights in one process that does nothing else: ranks are forked from it, which a test's process cannot do.

`python -m tests.unit.preflight.simulations JOBS` takes a list of jobs as JSON and writes what came of each.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("script.py")


def simulate(jobs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """One result for each job: `ends`, `stands`, `roots`, `error`, ..."""
    from tests.cli.command import environment
    from tests.warm_python import run_module

    arguments = ["tests.unit.preflight.simulations", json.dumps(jobs)]
    process = run_module(arguments, environment(OMP_NUM_THREADS="1"), folder, 560)
    assert process.returncode == 0, process.stderr
    output: list[dict[str, Any]] = json.loads(process.stdout)
    return output


def _simulate_job(job: dict[str, Any]) -> dict[str, Any]:
    from diagnostics.contract.findings import text_of
    from dtk.errors import DtkError
    from dtk.preflight.report import answer
    from dtk.preflight.run import Request, preflight

    script = Path(job["script"]) if "script" in job else None
    request = Request(**{**job, "script": script, "overrides": tuple(job.get("overrides", ()))})
    began_s = time.monotonic()
    try:
        result = preflight(request)
    except DtkError as error:
        return {"error": str(error)}
    report = result.verdict.report
    return {
        "ends": result.verdict.ends,
        "hangs": result.verdict.hangs,
        "answer": answer(result),
        "stands": result.verdict.stands,
        "simulated": result.simulated,
        "seconds": time.monotonic() - began_s,
        "notes": [] if report is None else list(report.notes),
        "roots": [
            {
                "cause": item.cause,
                "ranks": item.ranks,
                "where": [(place.file, place.line) for place in item.where],
                "does": [str(place.does) for place in item.where],
                "summary": text_of(item).summary,
            }
            for item in (() if report is None else report.root_causes)
        ],
        "tried": [(item.failure.fault, item.hangs, item.cause, str(item.where), item.stands) for item in result.tried],
    }


if __name__ == "__main__":
    print(json.dumps([_simulate_job(job) for job in json.loads(sys.argv[1])]))
