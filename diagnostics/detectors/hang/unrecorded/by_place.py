"""Ranks in different places where no recorder tells of calls: only tracebacks of timeouts, and stacks.

These show where each rank stood, not the calls before. So who left one out, ran fewer steps or took another branch
stays open, and what would tell is named. A host that stands still outside any collective is another matter.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diagnostics.analysis.stall.late import taken_s
from diagnostics.causes.hang._host import doing, fix
from diagnostics.contract.findings import EvidenceItem, Finding, Where
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.model import Frame, Stacks
from diagnostics.evidence.stacks import activity
from diagnostics.evidence.stacks import dumps as stacks

_OPEN = ("hang.uneven_iterations", "hang.conditional_collective", "hang.collective_mismatch")
_C10D = "distributed_c10d.py"
_WITHIN = {"_engine_run_backward": "backward", "_distributed_broadcast_coalesced": "broadcast of DDP's buffers"}
"""Functions of torch that communicate in C++, where the error by which a rank gave up came from."""
_CONFIDENCE = 0.75
"""Of one stack, in a job of which something else says that it hangs."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rank stands in a collective."""

    op: str
    path: tuple[Frame, ...]
    """The user's frames, innermost first."""
    evidence: EvidenceItem

    @property
    def text(self) -> str:
        """`barrier (train.py:25)`"""
        return f"{self.op} ({say.short(self.path[0].file)}:{self.path[0].line})"


def find(context: Context) -> list[Finding]:
    """At most one matter: a rank outside any collective, or ranks in different ones."""
    records = context.survey.ranks.values()
    ahead = _ahead(context)
    known = any(record.lines or record.p2p for record in records)
    if (known and not ahead) or any(end.gone for end in context.ends.values()):
        return []
    latest = {one.rank: one for one in context.evidence.stacks if one.rank is not None}
    inside = _inside(context, latest, ahead)
    if ahead and ahead != set(inside):
        return []
    outside = {rank: seen for rank, seen in latest.items() if rank not in inside and rank not in context.settled}
    kinds: defaultdict[tuple[str, Frame], list[int]] = defaultdict(list)
    for rank, place in inside.items():
        kinds[place.op, place.path[0]].append(rank)
    if len(kinds) == 1 and outside and context.stands_still():
        return _stalled(context, inside, outside)
    if len(kinds) == 2 and not outside and not set(inside) & context.settled:
        return _apart(inside, *sorted(kinds.values(), key=lambda ranks: (len(ranks), ranks)))
    return []


def _ahead(context: Context) -> set[int]:
    """Ranks that made the same one call more than all others, where gloo's records show nothing pending.

    Gloo marks a call that failed as it marks one that completed, so dumps of a job that gave up look like this.
    """
    lines = [table.lines for key, table in context.survey.groups.items() if key.recorder == "gloo"]
    if len(lines) != 1 or context.waits.of_rank or len(lines[0]) < context.world():
        return set()
    issued = {rank: line.issued for rank, line in lines[0].items()}
    most = max(issued.values())
    return {rank for rank, count in issued.items() if count == most} if most - min(issued.values()) == 1 else set()


def _inside(context: Context, latest: dict[int, Stacks], ahead: set[int]) -> dict[int, _Place]:
    """Rank -> the collective that its stack, or the error by which it gave up on a peer, stands in."""
    found: dict[int, _Place] = {}
    for rank, end in context.ends.items():
        if end.victim:
            _add(found, rank, end.frames, end.evidence, _WITHIN)
    for rank, seen in latest.items():
        thread = stacks.main_thread(seen)
        if rank not in found and thread is not None:
            _add(found, rank, thread.frames, EvidenceItem("stacks", seen.file, ""), _WITHIN if rank in ahead else {})
    return dict(sorted(found.items()))


def _add(
    found: dict[int, _Place],
    rank: int,
    frames: Iterable[Frame],
    item: EvidenceItem,
    within: Mapping[str, str],
) -> None:
    op, path = "", []
    for frame in frames:
        if not (stacks.is_native(frame) or is_library(frame.file)):
            path.append(frame)
        elif not path and frame.file.endswith(_C10D):
            op = frame.function.rpartition(".")[2]
        elif not path and not op:
            op = within.get(frame.function.rpartition(".")[2], "")
    if op and path and not op.startswith(("_", "init_process_group", "new_group")):
        place = _Place(op, tuple(path), item)
        seen = EvidenceItem(item.kind, item.file, f"rank {rank}: stands in {place.text}", item.line)
        found[rank] = _Place(op, tuple(path), seen)


def _apart(inside: dict[int, _Place], few: list[int], many: list[int]) -> list[Finding]:
    """Two places. Who is at the later line may be ahead, or a round of the loop behind."""
    one, other = inside[few[0]], inside[many[0]]
    summary = (
        f"{say.sentence(say.ranks(few))} {say.verb(few, 'is', 'are')} in {one.text} while {say.ranks(many)} "
        f"{say.verb(many, 'is', 'are')} in {other.text}. Which calls came before is not recorded: fewer steps, "
        "a call left out, one added, or another branch all end like this."
    )
    missing = (
        f"the calls before {one.text} on {say.ranks(few)} and {other.text} on {say.ranks(many)}: "
        "dtk watch -- torchrun ..., or under NCCL TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_TEMP_FILE=/tmp/flight_rank_"
    )
    return [say.undecided(cause, summary, missing, inside) for cause in _OPEN]


def _stalled(context: Context, inside: dict[int, _Place], outside: dict[int, Stacks]) -> list[Finding]:
    """All others wait in one collective, and these stand elsewhere: late or stuck, as long as nothing tells more."""
    standings = {rank: activity.doing(seen, taken_s(context, seen)) for rank, seen in sorted(outside.items())}
    known = {rank: at for rank, at in standings.items() if at.doing not in {"unknown", "collective", "user code"}}
    if not known or len(known) < len(standings):
        return []
    ranks = tuple(known)
    first, place = known[ranks[0]], next(iter(inside.values()))
    context.settled |= {*ranks, *inside}
    return [
        Finding(
            cause="hang.host_stall",
            status="confirmed",
            summary=(
                f"{say.sentence(say.ranks(ranks))} {say.verb(ranks, 'is', 'are')} not in {place.text}, which "
                f"{say.ranks(inside)} {say.verb(inside, 'waits', 'wait')} in: its host is {doing(first)}."
            ),
            confidence=_CONFIDENCE,
            ranks=ranks,
            victims=tuple(inside),
            where=(
                *(
                    Where(rank, at.frame.file, at.frame.line, at.frame.function, f"stands there, {at.words}")
                    for rank, at in list(known.items())[:4]
                    if at.frame is not None
                ),
                Where(
                    next(iter(inside)),
                    place.path[0].file,
                    place.path[0].line,
                    place.path[0].function,
                    f"waits in {place.op}",
                ),
            ),
            evidence=(
                *(
                    EvidenceItem("stacks", outside[rank].file, f"rank {rank}: {doing(at)}")
                    for rank, at in known.items()
                ),
                place.evidence,
            )[:6],
            remedies=say.remedies(context.evidence, fix(first), "everybody else waits for this rank's next collective"),
            measured=f"{len(inside)} ranks in {place.op}, {len(ranks)} outside",
        )
    ]
