"""Where a call comes from: the user's frames of the running code, innermost first."""

from types import CodeType, FrameType

import torch
from torch.distributed import distributed_c10d as c10d

from diagnostics.evidence.calls import USER_CALLS
from dtk.record import frames as record_frames
from dtk.record.signatures import OBJECTS

outermost: CodeType | None = None
"""What called the rank's own code."""
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
    """Return the object collective that this call is a part of; empty for any other call."""
    name = ""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        if frame.f_code.co_name in _USER_CALLS and frame.f_code.co_filename == c10d.__file__:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name
