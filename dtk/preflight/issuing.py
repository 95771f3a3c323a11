"""What is recorded of a simulated rank's calls besides their tensors: where they were made, and of which groups."""

import sys
from collections.abc import Sequence
from types import CodeType, FrameType

import torch
from torch.distributed import distributed_c10d as c10d

from diagnostics.evidence.calls import USER_CALLS
from dtk.preflight import simulated_rank
from dtk.preflight.calls import NEW_GROUP
from dtk.preflight.simulated_rank import SimulatedRank
from dtk.record import frames as record_frames
from dtk.record.signatures import OBJECTS, Call, Kind

_NEW_GROUP = Kind(NEW_GROUP, NEW_GROUP, Call)


def current() -> SimulatedRank:
    """Return the rank that is currently simulated."""
    simulated = simulated_rank.current
    assert simulated is not None
    return simulated


def made_group(ranks: Sequence[int], desc: str) -> None:
    """Record the creation of a group, with or without this rank: a collective of the default group."""
    simulated = current()
    members = tuple(ranks)
    simulated.new_groups.append((members, desc))
    total = len(members)  # One number represents the list of ranks: it distinguishes lists as well as the list itself.
    for rank in members:
        total = (total * 1_000_003 + rank + 1) % 2_147_483_647
    call = Call(c10d._get_default_group(), False, (), amount=total, splits=list(members))
    number = simulated.tape.issued
    frame = sys._getframe(2)
    simulated.tape.stack = stack_of(frame)
    token = simulated.log.begin(_NEW_GROUP, call, "", frame)
    if token is not None:
        simulated.log.end(token, 0, False)
        simulated.tape.wait(number)


outermost: CodeType | None = None  # Code object that called the rank's own code.
_USER_CALLS = {*OBJECTS, "monitored_barrier"}
_plumbing: dict[CodeType, bool] = {}
_TORCH = torch.__path__[0]


def stack_of(frame: FrameType | None) -> str:
    """Return the user's frames, innermost first, and those of torch that name the call or its backward pass."""
    sites = []
    while frame is not None and frame.f_code is not outermost:
        code = frame.f_code
        hidden = _plumbing.get(code)
        if hidden is None:
            file, name = code.co_filename, code.co_name
            telling = file.startswith(_TORCH) and (name == "backward" or name in USER_CALLS)
            hidden = _plumbing[code] = not telling and file.startswith((*record_frames.PLUMBING, "<"))
        if not hidden:
            sites.append(f"{code.co_filename}:{frame.f_lineno}\t{code.co_qualname}")
        frame = frame.f_back
    return "\n".join(sites)


def user_call(frame: FrameType | None) -> str:
    """Return the object collective that this call belongs to; empty for any other call."""
    name = ""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        if frame.f_code.co_name in _USER_CALLS and frame.f_code.co_filename == c10d.__file__:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name
