"""What a run's folder, maybe somebody else's, says now: the curves of its metrics, and where each rank is. Bounded."""

import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import RunPaths, read_heartbeat
from diagnostics.contract.files import open_regular
from diagnostics.contract.formatting import seconds_text
from diagnostics.evidence.limits import Limits, whole
from diagnostics.evidence.readers.ring import call_of
from diagnostics.evidence.ring.format import parse

TAIL_BYTES = 8 << 20
"""Of metrics.jsonl, from its end: 20,000 records at some 400 bytes each, read in a tenth of a second."""
MOST_POINTS = 400  # Of a curve: a screen has no more room.
MOST_RANKS = 16_384
RINGS = 64  # Ranks whose rings are read for each look: half a megabyte each.
_RANK = re.compile(r"rank_(\d{5,8})\.json")


@dataclass(frozen=True, slots=True)
class RankNow:
    """One rank at its last sign of life."""

    rank: int
    step: int | None
    region: str
    quiet_s: float
    """Seconds since its heartbeat."""
    call: str = ""
    """The collective that it is inside, since when, and the line that called it; empty when it is in none."""


def curves(metrics: Path) -> dict[str, list[tuple[float, float]]]:
    """Name of each numeric metric -> (step, value), ascending, at most `MOST_POINTS`; of a step the last record counts.

    Args:
        metrics: metrics.jsonl; a file that is absent or damaged has no curves.
    """
    found: dict[str, dict[float, float]] = {}
    for record in _records(metrics):
        step = record.pop("step", None)
        if not isinstance(step, int) or isinstance(step, bool):
            continue
        for name, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                found.setdefault(name, {})[step] = value
    thinned = {}
    for name, values in found.items():
        points = sorted(values.items())
        stride = -(-len(points) // MOST_POINTS)
        thinned[name] = points[(len(points) - 1) % stride :: stride]  # The newest is always one of them.
    return thinned


def _records(metrics: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError), open_regular(metrics) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).split(b"\n")
        for line in lines[1:] if size > TAIL_BYTES else lines:
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict):
                    yield record


def ranks(paths: RunPaths, now_s: float) -> list[RankNow]:
    """Every rank that left a heartbeat, ascending.

    Args:
        paths: the run folder.
        now_s: seconds since 1970.
    """
    seen: dict[int, Path] = {}
    with suppress(OSError):
        for entry in os.scandir(paths.root / "heartbeat"):
            match = _RANK.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False) and len(seen) < MOST_RANKS:
                seen[int(match[1])] = Path(entry.path)
    present = []
    for rank, path in sorted(seen.items()):
        beat = read_heartbeat(path)
        if beat is None or not isinstance(beat.time_s, int | float) or not math.isfinite(beat.time_s):
            continue
        step = beat.step if isinstance(beat.step, int) else None
        call = _call(paths, rank, now_s) if len(seen) <= RINGS and beat.region != "end" else ""
        present.append(RankNow(rank, step, str(beat.region or ""), max(0.0, now_s - beat.time_s), call))
    return present


def _call(paths: RunPaths, rank: int, now_s: float) -> str:
    """Return the collective that a rank is inside, by its ring."""
    try:
        records = parse(whole(paths.root / "flight" / f"rank_{rank:05}.ring", Limits())).records
    except (OSError, ValueError):
        return ""
    if not records or records[-1].state != "started":
        return ""
    record = records[-1]
    where = f" at {record.file}:{record.line}" if record.file else ""
    return f"{call_of(record).described.text} for {seconds_text(max(0.0, now_s - record.time_s))}{where}"
