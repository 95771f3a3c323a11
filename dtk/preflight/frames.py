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
    """The user's frames, innermost first, and those of torch that say which call it is and whether in backward."""
    found = []
    while frame is not None and frame.f_code is not outermost:
        code = frame.f_code
        known = _plumbing.get(code)
        if known is None:
            file, name = code.co_filename, code.co_name
            told = file.startswith(_TORCH) and (name == "backward" or name in USER_CALLS)
            known = _plumbing[code] = not told and file.startswith((*record_frames.PLUMBING, "<"))
        if not known:
            found.append(f"{code.co_filename}:{frame.f_lineno}\t{code.co_qualname}")
        frame = frame.f_back
    return "\n".join(found)


def user_call(frame: FrameType | None) -> str:
    """The object collective, if any, that this call is a part of."""
    found = ""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        if frame.f_code.co_name in _USER_CALLS and frame.f_code.co_filename == c10d.__file__:
            found = frame.f_code.co_name
        frame = frame.f_back
    return found
