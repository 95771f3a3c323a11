"""Bytes by category over time, from the history of torch's caching allocator in a snapshot.

The history is a ring buffer. An allocation before its first event is known from its block, or if freed by size only.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from msgspec import Struct, field

from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.memory import levels, levels as words
from diagnostics.evidence.memory.levels import AT, KINDS, RESERVED, UNKNOWN, Rise, Row, Stack, by_sizes, highest
from diagnostics.evidence.model import size_of
from diagnostics.evidence.trace.memory_marks import STEP, step_number

BACKWARD = "made in the backward pass"
"""A gradient if it is still allocated in the optimizer's step, which is only known from its release."""
REDUCED = "made to reduce gradients"
"""Either the input of a collective, or the gradient that it returns; distinguished in the same way."""
MAX_FRAMES = 256
_ROUNDING_US = 0.5  # A peak is placed in seconds from the first event, so its time is exact to less than this.
_ENGINE = ("torch::autograd::Engine", "torch::autograd::AccumulateGrad")
SAVING = patterns_beside(__file__)["saving"]
"""File and function of those that gather a full state dict."""
_STATES = frozenset({"_init_group", "_init_state", "load_state_dict"})
_SHARDING = ("/torch/distributed/fsdp/", "/torch/distributed/_composable/fsdp/")
_SHARDS = frozenset({"_init_sharded_param", "_init_flat_param_and_metadata", "flatten_tensors"})
_MOVES = ("gather", "unshard", "copy_in", "alloc")
_CALLS = ("/torch/distributed/distributed_c10d.py", "/torch/distributed/_functional_collectives.py")
_MODULE, _MODULES = "/torch/nn/modules/module.py", "/torch/nn/modules/"
_CALLED = frozenset({"_call_impl", "_wrapped_call_impl"})
_MOVED = frozenset({"_apply", "convert", "to_empty"})
_CONSTRUCTORS = frozenset({"__init__", "reset_parameters"})
_MODEL_STATES = frozenset({levels.PARAMETERS, levels.OPTIMIZER, BACKWARD, REDUCED})
"""Categories that persist from step to step; gradients are among them, as they may be accumulated."""


def owner(event: Mapping[str, Any]) -> str:
    """Return the category of an allocation or a block from its frames: one of `levels`, `BACKWARD` or `REDUCED`."""
    if event.get("forward_frames"):
        return BACKWARD  # torch records the stack of the forward pass for allocations of the backward pass.
    frames, category = event.get("frames"), levels.UNKNOWN
    for raw in frames[:MAX_FRAMES] if isinstance(frames, list | tuple) else ():
        if isinstance(raw, dict):
            purpose = _of_frame(str(raw.get("filename", ""))[:512], str(raw.get("name", ""))[:512])
            if purpose == levels.BUFFERS:
                category = purpose  # The collective may be one of a state dict, which is further out.
            elif purpose == levels.SAVED or (purpose and category == levels.UNKNOWN):
                return purpose
    return category


@lru_cache(maxsize=1 << 14)
def _of_frame(file: str, name: str) -> str:
    if name.startswith(_ENGINE):
        return BACKWARD
    file = "/" + file.replace("\\", "/").lstrip("/")
    if SAVING.search(f"{file} {name}"):
        return levels.SAVED
    if "/torch/" not in file:
        return ""
    if name == "_engine_run_backward" or (file.endswith("/torch/autograd/__init__.py") and name == "_make_grads"):
        return BACKWARD
    if "/torch/optim/" in file:
        return levels.OPTIMIZER if name in _STATES else levels.TEMPORARIES
    if any(folder in file for folder in _SHARDING):
        moves = levels.BUFFERS if any(word in name for word in _MOVES) else ""
        return levels.PARAMETERS if name in _SHARDS else REDUCED if "reduce" in name else moves
    if file.endswith(_CALLS) or (file.endswith("/torch/nn/parallel/distributed.py") and name == "_ddp_init_helper"):
        return levels.BUFFERS
    if file.endswith(_MODULE):
        return levels.ACTIVATIONS if name in _CALLED else levels.PARAMETERS if name in _MOVED else ""
    is_made = (_MODULES in file and name in _CONSTRUCTORS) or file.endswith("/torch/nn/parameter.py")
    return levels.PARAMETERS if is_made else ""


MAX_STEPS = 400
_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_OPTIMIZER = "Optimizer.step"
Event = Mapping[str, Any]
Annotation = tuple[int, bool, str]
"""(us in the clock of the events, whether it begins or ends, name)"""


class History(Struct):
    """One device's history. Times are seconds from the first event, or event numbers if torch recorded no times."""

    rows: list[Row] = field(default_factory=list)
    has_times: bool = True
    peak: Row | None = None
    peak_event: Event | None = None
    """The allocation that reached the peak; None if the peak came before the first event."""
    peak_step: int | None = None
    """Step of the annotations that are open at the peak."""
    peak_region: str = ""
    """Name of the innermost annotation at the peak that is no step."""
    steps: list[tuple[float, int]] = field(default_factory=list)
    """Pairs (time, step) at which steps begin, from the annotations."""
    failed: tuple[float, int] | None = None
    """Pair (time, bytes) of the first failed request."""
    kept: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (event index, step) of allocations in whole steps that were never freed and are not model states."""
    whole_steps: int = 0
    """Number of steps whose beginning and end are in the history."""
    saved: list[int] = field(default_factory=list)
    """Indices of the allocations for a full state dict that are alive at the peak."""
    rise: Rise | None = None
    """Growth between equal points of a recording without stacks."""


class _Block(Struct):
    size_bytes: int
    owner: str
    start: int = -1
    """Index of the event; -1 if before the first one."""
    end: int | None = None


class _Paired(Struct):
    """The events of one device, with allocations matched to their releases."""

    blocks: dict[int, _Block] = field(default_factory=dict)
    """Index of the allocation event -> block."""
    freed: dict[int, _Block] = field(default_factory=dict)
    """Index of the release event -> block."""
    alive: dict[int, _Block] = field(default_factory=dict)
    """Address -> block that is allocated at the end."""


def read(
    events: Sequence[Event],
    blocks: Mapping[int, tuple[int, str]],
    reserved_bytes: int,
    annotations: Sequence[Annotation] = (),
) -> History:
    """Reconstruct the bytes of each category of one device over time from the state at the end.

    The blocks that are allocated at the end are by address; events and annotations are of one device, in their order.
    """
    times, has_times = _times(events)
    history = History(has_times=has_times)
    if not times:
        return history
    paired = _pair(events)
    # Indices of events at which the optimizer worked.
    at_work = {n for n, block in paired.blocks.items() if block.owner in (words.OPTIMIZER, words.TEMPORARIES)}
    for time_us, begins, name in annotations if has_times else ():
        if begins and _OPTIMIZER in name:
            at_work.add(bisect_right(times, time_us))
    steps_at = sorted(at_work)
    marked = [bisect_right(times, at) for at, begins, name in annotations if begins and step_number(name) is not None]
    # Where each optimizer step begins: its first allocation after a backward pass.
    passes = [(n, False) for n, block in paired.blocks.items() if block.owner in (BACKWARD, REDUCED)]
    order = pairwise(sorted([*passes, *((n, True) for n in at_work)]))
    updates = [n for (_, before), (n, now) in order if now and not before]
    borders = marked if len(marked) > 1 and has_times else updates
    history.whole_steps = max(0, len(borders) - 1)
    if not any(event.get("frames") for event in events):
        moves = {n: block.size_bytes for n, block in paired.blocks.items()}
        moves |= {n: -freed.size_bytes for n, freed in paired.freed.items()}
        history.rise = by_sizes([moves[n] for n in sorted(moves)])
    for block in paired.alive.values():
        if block.owner not in _MODEL_STATES and 0 < (at := bisect_right(borders, block.start)) < len(borders):
            history.kept.append((block.start, at))
    for block in paired.blocks.values():
        block.owner = _settled(block, steps_at)
    levels = _levels_before(events, paired, blocks, reserved_bytes, bool(steps_at))
    _sweep(history, events, times, paired, levels)
    if has_times and history.peak is not None:
        _place(history, times[0] + history.peak[0] * 1e6, annotations)
        history.steps = [
            ((time_us - times[0]) / 1e6, step)
            for time_us, begins, name in annotations
            if begins and time_us >= times[0] and (step := step_number(name)) is not None
        ][:MAX_STEPS]
    return history


def _times(events: Sequence[Event]) -> tuple[list[int], bool]:
    """Return non-decreasing times in us, or the order of events if torch (before 2.1) recorded none."""
    times: list[int] = []
    for event in events:
        time_us = event.get("time_us")
        if not isinstance(time_us, int) or not 0 < time_us < 1 << 62:
            return list(range(len(events))), False
        times.append(max(time_us, times[-1] if times else 0))
    return times, True


def _pair(events: Sequence[Event]) -> _Paired:
    paired = _Paired()
    has_requests = any(event.get("action") == "free_requested" for event in events)
    release = "free_requested" if has_requests else "free_completed"  # Either may be missing from a recording.
    for n, event in enumerate(events):
        action, address, size = event.get("action"), event.get("addr"), size_of(event.get("size"))
        if not isinstance(address, int) or not size:
            continue
        if action == "alloc":
            paired.blocks[n] = paired.alive[address] = _Block(size, owner(event), n)
        elif action == release:
            block = paired.alive.pop(address, None) or _Block(size, UNKNOWN)
            block.end, paired.freed[n] = n, block
    return paired


def _settled(block: _Block, steps_at: Sequence[int]) -> str:
    """Return the final category of a block: gradients are the backward pass's blocks that the optimizer step finds."""
    if block.owner not in (BACKWARD, REDUCED):
        return block.owner
    at = bisect_right(steps_at, block.start)
    if at < len(steps_at) and (block.end is None or block.end > steps_at[at]):
        return words.GRADIENTS
    if block.owner == REDUCED:
        return words.BUFFERS
    return words.ACTIVATIONS if block.end is not None else UNKNOWN


def _changes(n: int, event: Event, paired: _Paired) -> tuple[tuple[int, int], ...]:
    if (block := paired.blocks.get(n)) is not None:
        return ((AT[block.owner], block.size_bytes),)
    if (freed := paired.freed.get(n)) is not None:
        return ((AT[freed.owner], -freed.size_bytes),)
    sign = _RESERVES.get(str(event.get("action")))
    return ((AT[RESERVED], sign * (size_of(event.get("size")) or 0)),) if sign else ()


def _levels_before(
    events: Sequence[Event], paired: _Paired, blocks: Mapping[int, tuple[int, str]], reserved_bytes: int, outlived: bool
) -> list[int]:
    """Return the levels before the first event, from blocks that are left and from the sizes of those freed since."""
    levels = [0] * len(KINDS)
    for address, (size, word) in blocks.items():
        if address not in paired.alive:
            word = (words.GRADIENTS if outlived else UNKNOWN) if word in (BACKWARD, REDUCED) else word
            levels[AT[word]] += size
    net = [0, 0]
    for n, event in enumerate(events):
        for at, change in _changes(n, event, paired):
            net[at == AT[RESERVED]] += change
    rest = sum(size for size, _ in blocks.values()) - net[0] - sum(levels)
    levels[AT[UNKNOWN]] += max(0, rest)
    while rest < 0 and max(levels) > 0:  # If history and blocks disagree, the blocks are right.
        at = levels.index(max(levels))
        taken = min(levels[at], -rest)
        levels[at], rest = levels[at] - taken, rest + taken
    levels[AT[RESERVED]] = max(0, reserved_bytes - net[1])
    return levels


def _sweep(history: History, events: Sequence[Event], times: Sequence[int], paired: _Paired, levels: list[int]) -> None:
    stack = Stack(0.0, float(times[-1] - times[0]), levels)
    unit = 1e-6 if history.has_times else 1.0
    most, place = stack.total, None
    for n, event in enumerate(events):
        changes = _changes(n, event, paired)
        if changes:
            stack.move(times[n] - times[0], changes)
        if stack.total > most:
            most, place = stack.total, n
        if event.get("action") == "oom" and history.failed is None:
            history.failed = ((times[n] - times[0]) * unit, size_of(event.get("size")) or 0)
    history.rows = [(time * unit, sizes) for time, sizes in stack.finish()]
    history.peak = highest(history.rows)
    if place is not None:
        history.peak_event, copies = events[place], [b for b in paired.blocks.values() if b.owner == words.SAVED]
        history.saved = [b.start for b in copies if b.start <= place and (b.end is None or b.end > place)]


def _place(history: History, at_us: float, annotations: Iterable[Annotation]) -> None:
    """Set the step and the innermost region of the peak from the annotations that are open at that time."""
    names: list[str] = []
    for time_us, begins, name in annotations:
        if time_us > at_us + _ROUNDING_US:
            break
        if begins:
            names.append(name)
        elif name in names:
            del names[len(names) - 1 - names[::-1].index(name)]
    history.peak_step = next((step for name in names if (step := step_number(name)) is not None), None)
    history.peak_region = next((name for name in reversed(names) if not name.startswith(STEP)), "")
