"""The current state of run folders: curves, the position of each rank, tags, sweeps. Bounded: folders are untrusted."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from diagnostics.contract.artifacts import RunPaths, read_heartbeat
from diagnostics.contract.formatting import clean, seconds_text
from diagnostics.evidence.job.run_folder import of_ranks
from diagnostics.evidence.limits import Limits, lines_of, whole
from diagnostics.evidence.readers.ring import call_of
from diagnostics.evidence.ring.format import parse
from diagnostics.report.measures import Breakdown, breakdown
from diagnostics.runs.find import Run
from diagnostics.runs.records import last_lines, latest_records, mapping, number, objects, whole_number

TAIL_BYTES = 8 << 20
"""Bytes read from the end of metrics.jsonl: 20,000 records of some 400 bytes, read in a tenth of a second."""
MOST_POINTS = 400  # Points of a curve: a screen has no more room.
RINGS = 64  # Ranks whose rings are read on each refresh, the slowest first: half a megabyte each.
MOST_MARKS = 24  # Shown as filters; others can be entered in the URL.
_LONGEST = 60  # Characters of a tag.


@dataclass(frozen=True, slots=True)
class RankNow:
    """One rank at its last heartbeat."""

    rank: int
    step: int | None
    region: str
    quiet_s: float
    """Seconds since its heartbeat."""
    call: str = ""
    """The collective that it is inside, since when, and its call site; empty if none."""


def curves(metrics: Path) -> dict[str, list[tuple[float, float]]]:
    """Return metric name -> (step, value) points, ascending, at most `MOST_POINTS`.

    If several attempts recorded a step, the latest one counts. A file that is absent or damaged has no curves.
    """
    curves_by_name: dict[str, dict[float, float]] = {}
    lines = last_lines(metrics, TAIL_BYTES)
    for step, record in latest_records(lambda: lines):
        for name, value in record.items():
            if name != "step" and (figure := number(value)) is not None:
                curves_by_name.setdefault(name, {})[step] = figure
    thinned = {}
    for name, values in curves_by_name.items():
        points = sorted(values.items())
        stride = -(-len(points) // MOST_POINTS)
        thinned[name] = points[(len(points) - 1) % stride :: stride]  # The newest point is always included.
    return thinned


def ranks(paths: RunPaths, now_s: float, *, live: bool = True) -> list[RankNow]:
    """Every rank that left a heartbeat, ascending; of a run that is not `live` nobody waits any longer."""
    present = []
    for rank, path in of_ranks(paths.root / "heartbeat", Limits()):
        beat = read_heartbeat(path)
        if beat is None or (time_s := number(beat.time_s)) is None:
            continue
        quiet_s = max(0.0, now_s - time_s)
        present.append(RankNow(rank, whole_number(beat.step), str(beat.region or ""), quiet_s))
    behind = sorted(present, key=lambda rank: (rank.step or 0, -rank.quiet_s))[:RINGS]
    calls = {rank.rank: _call(paths, rank.rank, now_s if live else None) for rank in behind if rank.region != "end"}
    return [replace(rank, call=calls[rank.rank]) if calls.get(rank.rank) else rank for rank in present]


def _call(paths: RunPaths, rank: int, now_s: float | None) -> str:
    try:
        records = parse(whole(paths.ring(rank), Limits())).records
    except (OSError, ValueError):
        return ""
    if not records or records[-1].state != "started":
        return ""
    record = records[-1]
    where = f" at {record.file}:{record.line}" if record.file else ""
    since = f" for {seconds_text(max(0.0, now_s - record.time_s))}" if now_s is not None else ""
    return f"{call_of(record).described.text}{since}{where}"


def unread_ns(paths: RunPaths) -> int:
    """Return the time of the newest trace in ns since 1970; 0 if there is none or it was already reported."""
    traces = [path.stat().st_mtime_ns for path in (paths.root / "traces").glob("rank_*")]
    with suppress(OSError):
        if (paths.root / "report" / "report.json").stat().st_mtime_ns >= max(traces, default=0):
            return 0
    return max(traces, default=0)


def step_parts(paths: RunPaths) -> Breakdown | None:
    """Return the breakdown of a profiled step from the run's report; None without traces or a report."""
    with suppress(AttributeError, KeyError, TypeError, ValueError, OverflowError):  # The report may be untrusted.
        return breakdown(mapping(str(paths.root / "report" / "report.json"), [])["measures"])
    return None


def tags(runs: Iterable[Run]) -> dict[str, set[str]]:
    """Return tag -> ids of the runs that have it, the most frequent first."""
    runs_by_tag: dict[str, set[str]] = {}
    for run in runs:
        with suppress(OSError):
            path = f"{run.path}/manifest.json"
            for tag in _tags(path, os.stat(path).st_mtime_ns):  # noqa: PTH116 - for ten thousand runs
                runs_by_tag.setdefault(tag, set()).add(run.id)
    return dict(sorted(runs_by_tag.items(), key=lambda item: (-len(item[1]), item[0])))


@lru_cache(maxsize=20_000)
def _tags(manifest: str, changed_ns: int) -> tuple[str, ...]:
    words = mapping(manifest, []).get("tags")
    return tuple(clean(word)[:_LONGEST] for word in words if isinstance(word, str)) if isinstance(words, list) else ()


def sweeps(folder: Path) -> dict[str, set[str]]:
    """Return sweep -> ids of its runs, the newest sweep first.

    In the folder of the runs, `sweeps/<id>/runs.jsonl` says which runs a sweep has opened.
    """
    runs_by_sweep: dict[str, set[str]] = {}
    with suppress(OSError):
        for path in sorted((folder / "sweeps").iterdir(), reverse=True)[:MOST_MARKS]:
            with suppress(OSError, ValueError):
                events = objects(lines_of(path / "runs.jsonl", Limits()))
                runs_by_sweep[path.name] = {Path(str(event["run"])).name for event in events if "run" in event}
    return {name: runs for name, runs in runs_by_sweep.items() if runs}
