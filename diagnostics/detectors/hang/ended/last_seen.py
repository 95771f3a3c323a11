"""Where a rank that is gone was seen last, by its ring or its dump. Decides nothing."""

from diagnostics.contract.findings import Where
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.calls import Call

SAME_MOMENT_S = 0.05
"""Two recorders note the same call at nearly the same time."""


def where(context: Context, rank: int) -> tuple[Where, ...]:
    """Where a rank was seen last, by its ring or dump, and a call in which a peer waits for it."""
    call = _latest(context, rank)
    if call is None or call.site is None:
        return ()
    inside = _inside(context, rank, call)
    region = f" (region {call.region})" if call.region else ""
    here = say.where(rank, call, f"{'was in' if inside else 'made'} {call.text}{'' if inside else ' last'}{region}")
    for operation, absent in sorted(context.waits.absent.items()):
        waiting = context.waits.waiting[operation]
        if rank in absent and waiting:
            there = context.waits.calls[waiting[0], operation]
            return (*here, *say.where(waiting[0], there, f"waits in {there.text}"))
    return tuple(here)


def after(context: Context, ranks: tuple[int, ...]) -> str:
    """` after all_reduce [8] float32 (#3, train.py:17)`, for one rank whose calls are known."""
    call = _latest(context, ranks[0]) if len(ranks) == 1 else None
    if call is None:
        return ""
    return f"{' in' if _inside(context, ranks[0], call) else ' after'} {say.call(call)}"


def _inside(context: Context, rank: int, call: Call) -> bool:
    """Whether it never came out of the call. Who ended in order did, though gloo marks it complete only later."""
    end = context.ends.get(rank)
    return not call.done and call.completion_known and not (end is not None and end.in_order)


def _latest(context: Context, rank: int) -> Call | None:
    """The youngest call of a rank, as the recorder tells it that knows its line: two write down the same one."""
    record = context.survey.ranks.get(rank)
    if record is None or record.last is None:
        return None
    calls = [record.last, *(line.last for line in record.lines.values() if line.last is not None)]
    youngest_s = max(call.created_s or 0.0 for call in calls)
    same = [call for call in calls if youngest_s - (call.created_s or 0.0) <= SAME_MOMENT_S]
    return max(same, key=lambda call: (call.site is not None, call.created_s or 0.0))
