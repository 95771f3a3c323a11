"""Work over many large files, spread over processes. The results do not depend on how many there are."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

_AHEAD = 4  # Results of each process that may wait at once, so that memory does not grow with the files.
Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Yield the result of each item, in their order. What goes wrong with a process is made up for in this one.

    Args:
        work: a function of a module; its argument and its result can be pickled.
        items: one for each call.
        workers: processes to start; fewer than two = none.
    """
    done, workers = 0, min(workers, len(items))
    if workers > 1:
        from concurrent.futures import ProcessPoolExecutor  # Here, as most diagnoses are of a log or of one trace.
        from multiprocessing import get_context

        # A worker starts as a copy of this process, which imports nothing again, where that is safe: a thread may hold
        # a lock that a copy would never see free.
        alone = sys.platform == "linux" and threading.active_count() == 1
        try:
            with ProcessPoolExecutor(workers, mp_context=get_context("fork" if alone else "spawn")) as pool:
                for start in range(0, len(items), workers * _AHEAD):
                    for result in pool.map(work, items[start : start + workers * _AHEAD]):
                        yield result
                        done += 1
        except (OSError, RuntimeError, AssertionError):  # A broken pool, or a place that allows no processes.
            pass
    yield from map(work, items[done:])
