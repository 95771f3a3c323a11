"""JSON files of torch.profiler's `export_memory_timeline`: bytes by category over time, as single events or as sums.

Source: torch/profiler/_memory_profiler.py, whose categories are numbered by `_CATEGORY_TO_INDEX`.
"""

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from diagnostics.evidence.limits import whole
from diagnostics.evidence.memory.history import History
from diagnostics.evidence.memory.levels import (
    ACTIVATIONS,
    AT,
    GRADIENTS,
    KINDS,
    OPTIMIZER,
    PARAMETERS,
    TEMPORARIES,
    UNKNOWN,
    Stack,
    by_levels,
    highest,
)
from diagnostics.evidence.reader import Handle, Reader, opens

# Inputs and autograd's details count as activations, as they grow with the micro-batch. The last one is torch's None.
_PLACES = [
    AT[kind] for kind in (PARAMETERS, OPTIMIZER, ACTIVATIONS, TEMPORARIES, ACTIVATIONS, GRADIENTS, ACTIVATIONS, UNKNOWN)
]
_RAW = re.compile(rb"\s*\[\s*\[\s*-?\d+,\s*[1-4],\s*-?\d+,\s*[0-7]\]")
_ADDED_UP = re.compile(rb"\s*\[\s*\[\s*\d{9,18},\s*\d{9,18}[\],]")
_Change = tuple[int, int, int]
"""Time (-1 = before the window), place in `KINDS`, bytes."""
_Added = tuple[list[int], list[list[int]]]


class MemoryTimelineFile(Handle, frozen=True):
    """The memory of one device during a profiled window."""

    kind = "memory_timeline"

    def load(self) -> History:
        """Return bytes of each category over time; OSError if unreadable, ValueError if damaged, too large or empty."""
        text = whole(self.path, self.limits)
        try:
            is_raw = _RAW.match(text) is not None
            events = msgspec.json.decode(text, type=list[tuple[int, int, int, int]]) if is_raw else []
            raw = [(time, _PLACES[at], size) for time, _, size, at in events if 0 <= at < len(_PLACES)]
            changes = raw if is_raw else [*_of_levels(*msgspec.json.decode(text, type=_Added))]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise ValueError(f"not a memory timeline: {problem}") from problem
        unit_s = 1e-9 if is_raw else 1e-6
        times = [time for time, _, _ in changes if time >= 0]
        if not times or max(times) - min(times) > 1e7 / unit_s:
            raise ValueError("it holds no times of a profiled window")
        first = min(times)
        stack = Stack(0.0, float(max(times) - first), [0] * len(KINDS))
        at_once: dict[int, Counter[int]] = {}
        for time, place, size in changes:
            at_once.setdefault(max(time, first), Counter())[place] += size
        moments = []
        for time in sorted(at_once):
            stack.move(float(time - first), at_once[time].items())
            moments.append(tuple(stack.levels))
        rows = [(time * unit_s, sizes) for time, sizes in stack.finish()]
        # Gradients that DDP or zero_grad(set_to_none=False) keep never fall; activations do, or are what stays.
        rises = (by_levels([(sizes[AT[kind]], sum(sizes)) for sizes in moments]) for kind in (GRADIENTS, ACTIVATIONS))
        return History(rows, peak=highest(rows), rise=next(filter(None, rises), None))


def _of_levels(times: list[int], rows: list[list[int]]) -> Iterator[_Change]:
    before = [0] * len(_PLACES)
    for time, (_, *sizes) in zip(times, rows, strict=True):
        if len(sizes) != len(_PLACES):
            raise ValueError("not a memory timeline: a row has not one size for each category of torch")
        yield from ((time, at, new - old) for at, new, old in zip(_PLACES, sizes, before, strict=True))
        before = sizes


READER = Reader(
    kind=MemoryTimelineFile.kind,
    title="exported memory timelines",
    recognise=lambda head: bool(_RAW.match(head) or _ADDED_UP.match(head)),
    open=opens(MemoryTimelineFile),
)
