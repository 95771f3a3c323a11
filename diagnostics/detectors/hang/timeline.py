"""What the ranks of one group called around the divergence, for the report's drawing. Decides nothing."""

from typing import Any

from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.one_rank import SNAPSHOTS, Line
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.contract.findings import Finding
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.calls import Call, GroupKey

BEFORE = 12
AFTER = 12
MAX_RANKS = 64
"""Ranks shown, the blamed ones first: each one's file is read once more."""


def timeline(context: Context, findings: list[Finding]) -> dict[str, Any] | None:
    """`measures.hang.timeline`: the group of the first confirmed finding that names one, else of the oldest wait."""
    confirmed = [one for one in findings if one.status == "confirmed"]
    placed = next((one for one in confirmed if one.group is not None and one.position is not None), None)
    found = _of_finding(context, placed) if placed is not None else _of_waits(context) if confirmed else None
    if found is None:
        return None
    key, middle = found
    blamed = {rank for one in confirmed for rank in one.ranks}
    rows = {
        str(rank): _row(context.survey.groups[key].lines[rank], context.reading.calls(rank, key), middle)
        for rank in _chosen(context.survey, key, blamed)
    }
    positions = sorted({cell["position"] for row in rows.values() for cell in row})
    if not positions:
        return None
    return {"group": say.label(key), "positions": positions, "ranks": rows}


def _of_finding(context: Context, finding: Finding) -> tuple[GroupKey, int] | None:
    """The recorder whose positions the finding is in: the one that has something pending or different there."""
    assert finding.group is not None and finding.position is not None
    name, position = finding.group.name, finding.position
    named = [key for key in sorted(context.survey.groups) if key.name == name]
    keys = [key for key in named if say.group(context.survey, key).desc == finding.group.desc]
    odd = [key for key in keys if position in context.survey.groups[key].deviations]
    pending = [key for key in keys if Operation(key, position) in context.waits.waiting]
    best = [*(key for key in odd if key.recorder == SNAPSHOTS), *odd, *pending, *keys]
    return (best[0], position) if best else None


def _of_waits(context: Context) -> tuple[GroupKey, int] | None:
    """Where the ranks wait for one that is gone."""
    waits = [
        (call.created_s or 0.0, operation)
        for (_, operation), call in context.waits.calls.items()
        if operation.peer < 0 and operation.key in context.survey.groups
    ]
    if waits:
        operation = min(waits)[1]
        return operation.key, operation.seq
    return None


def _chosen(survey: Survey, key: GroupKey, blamed: set[int]) -> list[int]:
    lines = survey.groups[key].lines
    first = [rank for rank in sorted(blamed) if rank in lines][:MAX_RANKS]
    others = [rank for rank in sorted(lines) if rank not in blamed]
    return sorted(first + others[: MAX_RANKS - len(first)])


def _row(line: Line, calls: list[Call], middle: int) -> list[dict[str, Any]]:
    return [
        {
            "position": call.seq,
            "op": call.user_op or call.wire.op,
            "signature": call.described.text.partition(" ")[2],
            "state": _state(line, call),
            "where": f"{call.site.file}:{call.site.line} in {call.site.function}" if call.site else "",
        }
        for call in calls
        if middle - BEFORE <= call.seq <= middle + AFTER
    ]


def _state(line: Line, call: Call) -> str:
    """Of an asynchronous call the ring knows only that it was made, unless later ones came after it in order."""
    if call.done or call.seq <= line.done:
        return "completed"
    return "pending" if call.completion_known else "issued"
