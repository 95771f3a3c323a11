"""What DeepSpeed's stage 3 gathers in a micro-batch, by the rules of its parameter coordinator (0.19).

A parameter is gathered when its module runs, the next ones ahead of their use, and freed after its module unless it is
used again soon. How much is held so is bounded by numbers of elements in `zero_optimization` of a ds_config: `limits`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod

from dtk.strategies.declared import Shape


def persistent(shapes: Sequence[Shape], limits: Mapping[str, int]) -> list[bool]:
    """Return which parameters stay gathered between steps: small ones, as long as all of them are few."""
    stay, kept = [], 0
    for size in map(prod, shapes):
        small = size <= limits["stage3_param_persistence_threshold"]
        stay.append(small and size + kept <= limits["stage3_model_persistence_threshold"])
        kept += stay[-1] * size
    return stay


def gathered(shapes: Sequence[Shape], limits: Mapping[str, int]) -> tuple[list[list[int]], int]:
    """Run through forward and backward once.

    Returns:
        the elements of each parameter that each all_gather brings, and how many are held at once at the most.
    """
    sizes, stay, modules = [prod(shape) for shape in shapes], persistent(shapes, limits), _modules(shapes)
    order = [*modules, [], *modules[::-1]]  # Between them the whole model, which has no parameters of its own.
    passed = [0, *accumulate(sum(sizes[p] for p in module) for module in order)]
    queue = deque((step, p) for step, module in enumerate(order) for p in module)
    held = {p for p, stays in enumerate(stay) if stays}
    live, most, calls, queued = 0, 0, list[list[int]](), dict[int, int]()
    for step, module in enumerate(order):
        for _ in [p for p in module if queued.get(p, -1) < step]:
            at, p = queue.popleft()
            queued[p] = at
        for ahead in (False, True):
            wanted = [p for p in module if p not in held and not ahead]
            room = min(limits["stage3_max_live_parameters"] - live, limits["stage3_prefetch_bucket_size"])
            while ahead and queue and sum(sizes[p] for p in wanted) < room:
                at, p = queue.popleft()
                queued[p] = at
                wanted += [] if p in held or p in wanted else [p]
            if wanted:
                calls.append([sizes[p] for p in wanted])
                held.update(wanted)
                live += sum(calls[-1])
                most = max(most, live)
        again = len(order) - 1 - step  # The module's turn in backward.
        soon = again > step and passed[again] - passed[step + 1] < limits["stage3_max_reuse_distance"]
        for p in module if not soon else ():
            if not stay[p] and queued[p] <= step + 1:
                held.discard(p)
                live -= sizes[p]
    return calls, most


def _modules(shapes: Sequence[Shape]) -> list[list[int]]:
    """Take a matrix and the vector behind it to be one module, and two vectors of one length: a layer with its bias."""
    modules: list[list[int]] = []
    for p, shape in enumerate(shapes):
        before = shapes[modules[-1][0]] if modules and len(modules[-1]) == 1 else ()
        modules[-1:] = [[p - 1, p]] if len(shape) == 1 and before[:1] == shape else [*modules[-1:], [p]]
    return modules
