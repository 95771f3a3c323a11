"""A measure of the work of an operation that is the same on every machine, however busy it is."""

import sys
from collections.abc import Callable
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
