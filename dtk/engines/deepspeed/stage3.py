"""What DeepSpeed's stage 3 gathers in a micro-batch, by the rules of its parameter coordinator (0.19).

A parameter is gathered when its module runs, the next ones ahead of their use, and freed after its module unless it is
used again soon. How much is held so is bounded by numbers of elements in `zero_optimization` of a ds_config: `limits`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from dtk.sharding.declared import Shape


def persistent(shapes: Sequence[Shape], limits: Mapping[str, int]) -> list[bool]:
    """Return which parameters stay gathered between steps: small ones, as long as all of them are few."""
    stay, kept = [], 0
    for size in map(prod, shapes):
        small = size <= limits["stage3_param_persistence_threshold"]
        stay.append(small and size + kept <= limits["stage3_model_persistence_threshold"])
        kept += stay[-1] * size
    return stay


class Turn(NamedTuple):
    """What one module does, in forward or in backward. All are indices of parameters."""

    module: list[int]
    fetched: list[int]
    """What the module itself waits for, in one all_gather."""
    prefetched: list[int]
    """What the next modules need, in another one."""
    freed: list[int]


def gathered(shapes: Sequence[Shape], limits: Mapping[str, int]) -> list[Turn]:
    """Run through forward and backward once."""
    sizes, stay, modules = [prod(shape) for shape in shapes], persistent(shapes, limits), _modules(shapes)
    order = [*modules, [], *modules[::-1]]  # Between them the whole model, which has no parameters of its own.
    passed = [0, *accumulate(sum(sizes[p] for p in module) for module in order)]
    queue = deque((step, p) for step, module in enumerate(order) for p in module)
    available = {p for p, stays in enumerate(stay) if stays}
    live, turns, queued = 0, list[Turn](), dict[int, int]()
    for step, module in enumerate(order):
        for _ in [p for p in module if queued.get(p, -1) < step]:
            at, p = queue.popleft()
            queued[p] = at
        fetched = [p for p in module if p not in available]
        available.update(fetched)
        live += sum(sizes[p] for p in fetched)
        room = min(limits["stage3_max_live_parameters"] - live, limits["stage3_prefetch_bucket_size"])
        ahead = list[int]()
        while queue and sum(sizes[p] for p in ahead) < room:
            at, p = queue.popleft()
            queued[p] = at
            ahead += [] if p in available or p in ahead else [p]
        available.update(ahead)
        again = len(order) - 1 - step  # The module's turn in backward.
        soon = again > step and passed[again] - passed[step + 1] < limits["stage3_max_reuse_distance"]
        freed = [p for p in module if not soon and not stay[p] and queued[p] <= step + 1]
        available.difference_update(freed)
        live += sum(sizes[p] for p in ahead) - sum(sizes[p] for p in freed)
        turns.append(Turn(module, fetched, ahead, freed))
    return turns


class Elements(NamedTuple):
    """Gathered elements while a module begins and while it runs, without parameters that always stay."""

    beginning: int
    running: int


def gathered_elements(shapes: Sequence[Shape], turns: Sequence[Turn]) -> tuple[list[Elements], list[Elements]]:
    """Return what is held in forward and in backward, at the turn of each parameter's module.

    Several parameters arrive in one buffer. The first module that needs one of them copies all out of it, and the
    buffer is freed when the last such module has begun.
    """
    sizes = [prod(shape) for shape in shapes]
    coming = list[tuple[set[int], int]]()
    """Parameters of each buffer whose modules have not begun, and its elements."""
    copied, per_pass = 0, [[Elements(0, 0)] * len(shapes) for _ in range(2)]
    waiting = set[int]()
    """Parameters that are in a buffer only."""
    for step, turn in enumerate(turns):
        for call in (turn.fetched, turn.prefetched):
            if call is turn.prefetched:
                for pending, _ in coming:
                    if not pending.isdisjoint(turn.module):
                        copied += sum(sizes[p] for p in pending & waiting)
                        waiting -= pending
                beginning = copied + sum(size for _, size in coming)
                coming = [(remaining, size) for pending, size in coming if (remaining := pending - set(turn.module))]
            size = sum(sizes[p] for p in call)
            if len(call) > 1:
                coming.append((set(call), size))
                waiting.update(call)
            else:
                copied += size  # Its buffer is the parameter.
        now = Elements(beginning, copied + sum(size for _, size in coming))
        for p in turn.module:
            per_pass[step > len(turns) // 2][p] = now
        copied -= sum(sizes[p] for p in turn.freed)
    return per_pass[0], per_pass[1]


def _modules(shapes: Sequence[Shape]) -> list[list[int]]:
    """Take a matrix and the vector behind it to be one module, and two vectors of one length: a layer with its bias."""
    modules: list[list[int]] = []
    for p, shape in enumerate(shapes):
        before = shapes[modules[-1][0]] if modules and len(modules[-1]) == 1 else ()
        modules[-1:] = [[p - 1, p]] if len(shape) == 1 and before[:1] == shape else [*modules[-1:], [p]]
    return modules
