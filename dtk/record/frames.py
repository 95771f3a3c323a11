"""Which frame of a stack is the user's: the innermost outside torch, the interpreter and dtk's own modules."""

import sysconfig
from pathlib import Path
from types import FrameType

import torch

_TORCH = str(Path(torch.__file__).parent)
_DTK = Path(__file__).parents[1]
_STDLIB = sysconfig.get_paths()["stdlib"]
_CACHE = 8192  # Chosen: far more lines than call collectives; then it is made anew.
PLUMBING = (_TORCH, *(str(_DTK / part) for part in ("record", "strategies", "parallel")))
"""Frames of these are not the user's call site."""


class Frames:
    """Looks along stacks, and remembers whose file is whose."""

    def __init__(self) -> None:
        self._plumbing: dict[str, bool] = {}

    def users(self, frame: FrameType | None) -> FrameType | None:
        """Return the user's innermost frame or, if there is none, the innermost frame outside torch."""
        cache, fallback = self._plumbing, None
        while frame is not None:
            file = frame.f_code.co_filename  # Equal functions of two files are equal code objects.
            is_plumbing = cache.get(file)
            if is_plumbing is None:
                if len(cache) > _CACHE:
                    cache.clear()
                # Of torch, of dtk, of the interpreter, or of what torch.compile generated.
                module = str(frame.f_globals.get("__name__"))
                is_stdlib = file.startswith(_STDLIB) and "-packages" not in file
                is_plumbing = is_stdlib or file.startswith((*PLUMBING, "<")) or module.startswith("torch.")
                cache[file] = is_plumbing
            if not is_plumbing:
                return frame
            if fallback is None and not file.startswith((*PLUMBING[:2], "<")):
                fallback = frame
            frame = frame.f_back
        return fallback


def place(frame: FrameType) -> str:
    """Return `file:line<tab>function`, as the ring keeps it."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}\t{frame.f_code.co_qualname}"
