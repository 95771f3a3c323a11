"""Sends and receives that gloo's recorder leaves out: found in stacks, and in tracebacks of calls that timed out."""

from collections.abc import Collection
from dataclasses import dataclass

from diagnostics.analysis.job_state import JobState
from diagnostics.analysis.observations import observations
from diagnostics.analysis.stall.stack_evidence import InCollective, collective_of
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.model import Frame
from diagnostics.evidence.stacks import dumps as stacks

_FUNCTIONS = {"recv": "recv", "send": "send", "irecv": "recv", "isend": "send", "batch_isend_irecv": "batch"}
"""torch's functions -> which way the bytes go."""
_DEPTH = 4  # Innermost frames among which torch's own function is looked for.


@dataclass(frozen=True, slots=True)
class UnrecordedTransfer:
    """Ranks that all send, or all receive, while no rank is left to post the other half."""

    direction: str
    """`send` or `recv`."""
    ranks: dict[int, InCollective]
    """Where each of them stands; the operation is the direction."""
    waiting: tuple[int, ...]
    """The other ranks, which wait for these."""
    world_known: bool
    """Whether anything but the files themselves says how many ranks the job has."""


def unrecorded_transfer(job: JobState, explained: Collection[int]) -> UnrecordedTransfer | None:
    """Find ranks that all wait in a send or all in a receive, where the rest waits for them or is empty."""
    world = job.world()
    found: dict[int, InCollective | None] = {}
    for rank, end in job.endings.items():
        if end.victim:
            found[rank] = _place(end.frames, end.evidence.kind, end.evidence.file)
    for dump in job.evidence.stacks:
        if dump.rank is not None and found.get(dump.rank) is None:
            thread = stacks.main_thread(dump)
            found[dump.rank] = _place(thread.frames if thread else (), "stacks", dump.file)
    inside = {rank: place for rank, place in sorted(found.items()) if place is not None}
    directions = {place.op for place in inside.values()}
    if world < 2 or directions not in ({"recv"}, {"send"}) or set(inside) & set(explained):
        return None
    rest = tuple(rank for rank in range(world) if rank not in inside)
    left = any(rank in job.endings and job.endings[rank].gone for rank in rest)
    # Or all the rest gave up on a peer in one collective, or looks from outside show them in one: gloo marks a call
    # that failed as it marks one that completed, so its dumps do not show it.
    gave_up = [job.endings[rank].frames for rank in rest if rank in job.endings and job.endings[rank].victim]
    dumps = [dump for rank, dump in job.latest_stacks().items() if rank in rest] if observations(job.evidence) else []
    stand = [thread.frames if (thread := stacks.main_thread(dump)) is not None else () for dump in dumps]
    places = [[collective_of(frames) for frames in stacks_of] for stacks_of in (gave_up, stand)]
    together = any(len(at) == len(rest) and len(set(at)) == 1 and None not in at for at in places)
    if left or not (together or set(rest) <= job.waits.reaching(inside)):
        return None
    return UnrecordedTransfer(directions.pop(), inside, rest, bool(job.evidence.world_size or job.survey.world()))


def _place(frames: tuple[Frame, ...], kind: str, file: str) -> InCollective | None:
    direction = next((_FUNCTIONS[frame.function] for frame in frames[:_DEPTH] if frame.function in _FUNCTIONS), None)
    site = next((frame for frame in frames if not is_library(frame.file)), None)
    return InCollective(direction, site, kind, file) if direction is not None else None
