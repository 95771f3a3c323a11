"""The records of a run folder as tables and files for a tracker. Sizes are bounded, as the folder may be untrusted."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import RunPaths, Status, complete_checkpoints, read_status
from diagnostics.evidence.limits import Limits, lines_of
from diagnostics.runs.records import as_mapping, mapping, objects, planned_and_measured
from dtk.record.guard import bounded

Table = tuple[tuple[str, ...], list[list[Any]]]
DIAGNOSIS_S = 20.0  # Chosen: as for the launcher's diagnosis; without it the run is uploaded all the same.
SETTLE_S = 15.0  # Chosen: timeout for the launcher to write the final status, which takes a second or two.
POLL_S = 0.2  # Chosen: far below the time that the launcher takes.
TIMELINE_ROWS = 2000  # Chosen: more points than a chart shows.


def ended(paths: RunPaths, wait_s: float) -> Status | None:
    """Return the status of a run once it is over, another attempt began or `wait_s` have passed; None if unreadable."""
    ends_s, attempt, status = time.monotonic() + wait_s, None, None
    while True:
        with suppress(OSError, ValueError):
            status = read_status(paths.status)
            attempt = status.attempt if attempt is None else attempt
            if status.state != "running" or status.attempt != attempt:
                return status
        if time.monotonic() >= ends_s:
            return status
        time.sleep(POLL_S)


def tables(paths: RunPaths) -> dict[str, Table]:
    """Return name -> (columns, rows) of the tables for which the folder has records."""
    figures = as_mapping(mapping(str(paths.summary), []).get("figures"))
    parity = mapping(str(paths.parity), [])
    about = as_mapping(parity.get("definitions"))
    plan = planned_and_measured(mapping(str(paths.plan), []), figures)
    peaks = figures.get("peak_memory_bytes_per_rank")
    timeline: list[dict[str, Any]] = []
    with suppress(OSError, ValueError):
        for record in objects(lines_of(paths.memory(0), Limits())):
            timeline.append(record)
            if len(timeline) == 2 * TIMELINE_ROWS:  # Every second row, so that the whole run stays visible.
                del timeline[1::2]
    columns = tuple(timeline[-1]) if timeline else ()
    by_name: dict[str, Table] = {
        "plan_and_actual": (("figure", "metric", "planned", "measured"), [list(row) for row in plan]),
        "parity": (
            ("condition", "value", "what it is"),
            [[k, str(v), about[k]] for k, v in parity.items() if k in about],
        ),
        "memory": (
            ("rank", "peak_memory_bytes"),
            [[*row] for row in enumerate(peaks if isinstance(peaks, list) else ())],
        ),
        "memory_timeline": (columns, [[record.get(column) for column in columns] for record in timeline]),
    }
    return {name: table for name, table in by_name.items() if table[1]}


def diagnosis(paths: RunPaths) -> tuple[Table, dict[str, Path]] | None:
    """Diagnose a run that did not finish; return a table of the causes and the report's files by name, or None."""

    def run() -> tuple[Table, dict[str, Path]]:
        from diagnostics.contract.findings import text_of
        from diagnostics.diagnose import diagnose
        from diagnostics.report.files import write_beside_run

        report = diagnose(paths.root)
        rows = []
        for finding in report.root_causes:
            text = text_of(finding)
            fixes = "; ".join(remedy.change for remedy in text.remedies)
            rows.append([finding.cause, report.title(finding.cause), str(list(finding.ranks)), text.summary, fixes])
        page, _ = write_beside_run(report, paths.root)
        files = {name: Path(page).with_name(name) for name in ("report.html", "report.json")} if page else {}
        return (("cause", "title", "ranks", "summary", "how to fix it"), rows), files

    return bounded("tracker diagnosis", run, DIAGNOSIS_S)


def last_checkpoint(paths: RunPaths) -> dict[str, Path]:
    """Return the files of the last complete checkpoint by their path in the checkpoints folder, without links."""
    last = complete_checkpoints(paths)[-1:]
    files = (file for folder in last if not folder.is_symlink() for file in folder.rglob("*"))
    return {
        str(file.relative_to(paths.checkpoints)): file for file in files if file.is_file() and not file.is_symlink()
    }
