"""Measures of the work of an operation that are the same on every machine, however busy it is."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")


def calls_in(operation: Callable[[], Result]) -> tuple[Result, int]:
    """Run the operation; return its result and how many functions were called in this thread, C's included."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = operation()
    finally:
        sys.setprofile(before)
    return result, count


def waited_s() -> float:
    """Return a clock of what this thread was kept from running by: without its time on a core or queued for one."""
    ran_ns, queued_ns, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return time.perf_counter() - (int(ran_ns) + int(queued_ns)) / 1e9
