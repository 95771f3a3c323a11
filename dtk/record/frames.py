"""Selection of the user's frame: the innermost outside torch, engines around it, the interpreter and dtk's modules."""

import sysconfig
from pathlib import Path
from types import FrameType

import torch

from dtk.engines import LIBRARIES

_TORCH = str(Path(torch.__file__).parent)
_DTK = Path(__file__).parents[1]
_STDLIB = sysconfig.get_paths()["stdlib"]
_CACHE = 8192  # Chosen: far more lines than call collectives; beyond it the cache is cleared.
PLUMBING = (_TORCH, *(str(_DTK / part) for part in ("record", "strategies", "parallel")))
"""Frames of these files are never the user's call site."""
_ENGINES = ("torch.", *(f"{library}." for library in LIBRARIES))
"""Modules whose calls the user made: DeepSpeed issues all collectives in one line of each operation."""


class Frames:
    """Searches stacks for the user's frame, and caches the owner of each file."""

    def __init__(self) -> None:
        self._plumbing: dict[str, bool] = {}

    def users(self, frame: FrameType | None) -> FrameType | None:
        """Return the user's innermost frame or, if there is none, the innermost frame outside torch."""
        cache, fallback = self._plumbing, None
        while frame is not None:
            file = frame.f_code.co_filename  # Equal functions of two files have equal code objects.
            is_plumbing = cache.get(file)
            if is_plumbing is None:
                if len(cache) > _CACHE:
                    cache.clear()
                # A file of torch, dtk or the interpreter, or code that torch.compile generated.
                module = str(frame.f_globals.get("__name__"))
                is_stdlib = file.startswith(_STDLIB) and "-packages" not in file
                is_plumbing = is_stdlib or file.startswith((*PLUMBING, "<")) or module.startswith(_ENGINES)
                cache[file] = is_plumbing
            if not is_plumbing:
                return frame
            if fallback is None and not file.startswith((*PLUMBING[:2], "<")):
                fallback = frame
            frame = frame.f_back
        return fallback


def place(frame: FrameType) -> str:
    """Format as `file:line<tab>function`, the form in the ring."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}\t{frame.f_code.co_qualname}"
