"""Distributes work over many large files to processes. The results do not depend on the number of processes."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

_AHEAD = 4  # Maximum number of waiting results per process, so that memory does not grow with the number of files.
Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Yield `work(item)` for each item in order. If the pool of processes fails, this process does the rest.

    `work` is a function of a module, as it is pickled like its argument and result; fewer than two `workers` = no pool.
    """
    done, workers = 0, min(workers, len(items))
    if workers > 1:
        from concurrent.futures import ProcessPoolExecutor  # Imported here: most diagnoses are of one log or trace.
        from multiprocessing import get_context

        # fork() saves the imports, but is only safe with a single thread: a lock of another would never be released.
        alone = sys.platform == "linux" and threading.active_count() == 1
        try:
            with ProcessPoolExecutor(workers, mp_context=get_context("fork" if alone else "spawn")) as pool:
                for start in range(0, len(items), workers * _AHEAD):
                    for result in pool.map(work, items[start : start + workers * _AHEAD]):
                        yield result
                        done += 1
        except (OSError, RuntimeError, AssertionError):  # A broken pool, or no processes are allowed here.
            pass
    yield from map(work, items[done:])
