"""What the ranks of one group called around the point where the job stood still, for the report's drawing."""

from collections.abc import Collection
from typing import Any

from diagnostics.analysis.histories.one_rank import SNAPSHOTS, Line
from diagnostics.analysis.job_state import JobState
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.evidence.calls import Call, GroupKey

BEFORE = AFTER = 12  # A convention: positions that the report's drawing has room for.
MAX_RANKS = 64  # Ranks shown, the culprits first: the file of each is read once more.
Point = tuple[GroupKey, int]  # A position in a group, as one recorder counts it.


def timeline(job: JobState, point: Point | None, culprits: Collection[int]) -> dict[str, Any] | None:
    """`measures.hang.timeline`; None where nothing was recorded.

    Args:
        job: with all ranks' calls.
        point: of the cause; None = where ranks have waited longest.
        culprits: all ranks to blame.
    """
    groups = job.survey.groups
    if point is None:
        known = (item for item in job.waits.calls.items() if item[0][1].peer < 0 and item[0][1].key in groups)
        waits = [(call.created_s or 0.0, operation) for (_, operation), call in known]
        if not waits:
            return None
        longest = min(waits)[1]
        point = longest.key, longest.seq
    key, middle = point
    lines = groups[key].lines
    first = [rank for rank in sorted(culprits) if rank in lines][:MAX_RANKS]
    others = [rank for rank in sorted(lines) if rank not in culprits]
    shown = sorted(first + others[: MAX_RANKS - len(first)])
    rows = {str(rank): _row(lines[rank], job.reading.calls(rank, key), middle) for rank in shown}
    positions = sorted({cell["position"] for row in rows.values() for cell in row})
    return {"group": key.label, "positions": positions, "ranks": rows} if positions else None


def point_of(job: JobState, group: GroupKey, position: int) -> Point | None:
    """Return the recorder whose counting has the position: a call differs or is pending there."""
    groups = job.survey.groups
    same_group = (group.name, group.desc or "undefined")
    keys = [key for key in sorted(groups) if (key.name, key.desc or "undefined") == same_group]
    differing = [key for key in keys if position in groups[key].deviations]
    pending = [key for key in keys if Operation(key, position) in job.waits.waiting]
    best = [*(key for key in differing if key.recorder == SNAPSHOTS), *differing, *pending, *keys]
    return (best[0], position) if best else None


def _row(line: Line, calls: list[Call], middle: int) -> list[dict[str, Any]]:
    return [
        {
            "position": call.seq,
            "op": call.user_op or call.wire.op,
            "signature": call.described.text.partition(" ")[2],
            # Of an asynchronous call the ring knows only that it was made, unless later ones came after it in order.
            "state": "completed"
            if call.done or call.seq <= line.done
            else ("issued", "pending")[call.completion_known],
            "where": f"{call.site.file}:{call.site.line} in {call.site.function}" if call.site else "",
        }
        for call in calls
        if middle - BEFORE <= call.seq <= middle + AFTER
    ]
