"""The stuck state as the records that a real run would have left, so that `dtk diagnose` explains it.

Writes into a folder that the caller removes. Every rank's calls up to the point where nothing moves any more, the
last one open; how ranks ended; what the job was. Decides nothing.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from diagnostics.contract.artifacts import Failure, RunPaths, Status, write_json
from dtk.preflight import dump_file
from dtk.preflight.calls import Record
from dtk.preflight.match import Outcome
from dtk.preflight.ring_file import RingFile

SLOTS = 2048
"""Calls written of each rank, as a run keeps them."""
BRIEF_SLOTS = 128
MANY_RANKS = 64
"""With more ranks than these the last BRIEF_SLOTS calls of each will do."""


def write(folder: Path, records: Mapping[int, Record], outcome: Outcome, plain: Mapping[str, object]) -> None:
    """Leave behind what a run that stands there would have left.

    Args:
        folder: exists.
        records: all ranks.
        outcome: of their match; some do not end.
        plain: the configuration, empty for a script.

    Raises:
        OSError: the folder cannot be written.
    """
    paths = RunPaths(folder)
    failure = _first_failure(records)
    write_json(paths.status, Status("failed" if failure else "hung", exit_code=1, failure=failure))
    if plain:
        paths.config.write_text(json.dumps(plain), encoding="utf-8")
    slots = SLOTS if len(records) <= MANY_RANKS else BRIEF_SLOTS
    (folder / "flight").mkdir(exist_ok=True)
    for rank, record in sorted(records.items()):
        standing = outcome.standings[rank]
        if record.end.kind != "killed" or standing.issued:
            paths.ring(rank).write_bytes(RingFile(record, len(records), standing, slots).data())
            paths.flight(rank).write_bytes(dump_file.data(record, standing, slots))
        _end(paths, record, came=standing.pending is None)


def _first_failure(records: Mapping[int, Record]) -> Failure | None:
    """As the launcher would name it."""
    for rank, record in sorted(records.items()):
        end = record.end
        step = end.step if end.step >= 0 else None
        if end.kind == "killed":
            return Failure(rank, f"killed by {end.signal}" if end.signal else "gone without a word", step)
        if end.kind == "raised":
            return Failure(rank, f"{end.error['type']}: {end.error['message']}", step, end.region or None, exit_code=1)
        if end.kind == "exited" and end.code:
            return Failure(rank, f"exit code {end.code}", step, exit_code=end.code)
    return None


def _end(paths: RunPaths, record: Record, came: bool) -> None:
    """What a rank left of itself besides its calls; of a good end only where it came to it."""
    rank, end, errors = record.rank, record.end, record.errors
    if end.kind == "raised":
        write_json(paths.error(0, rank), {**end.error, "step": end.step if end.step >= 0 else None})
        errors += str(end.error.get("traceback", ""))
    elif end.kind == "exited" and not end.code and came:
        path = paths.events(rank)
        path.parent.mkdir(exist_ok=True)
        event = {"kind": "event", "name": "end", "rank": rank, "attempt": 0, "exit_code": 0}
        path.write_text(json.dumps(event) + "\n", encoding="utf-8")
    elif end.kind == "stalled":
        paths.stacks(rank).parent.mkdir(exist_ok=True)
        paths.stacks(rank).write_text(end.stack, encoding="utf-8")
    if errors:
        paths.logs(0, rank).mkdir(parents=True, exist_ok=True)
        (paths.logs(0, rank) / "stderr.log").write_text(errors, encoding="utf-8")
