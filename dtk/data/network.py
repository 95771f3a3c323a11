"""Bounded waiting for libraries that download: a machine without a network must not hang. Name look-ups have no time
limit of their own, so they run on a daemon thread that is left behind when its time is up.
"""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

PROBE_S = 3.0
"""Longest wait for a server to answer at all."""


def bounded(work: Callable[[], T], limit_s: float) -> T:
    """Return the result of `work`, or raise what it raised.

    Raises:
        TimeoutError: it took longer than limit_s; its thread continues unwatched.
    """
    future: Future[T] = Future()

    def target() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=target, name="dtk-bounded", daemon=True).start()
    if not wait([future], limit_s).done:
        raise TimeoutError(f"no result within {limit_s:g} s")
    return future.result()


def unreachable(url: str) -> str | None:
    """Return why the server of this http(s) address can not be used, in a few words; None when it answers."""
    request = urllib.request.Request(url, method="HEAD")
    opener = urllib.request.build_opener()  # urlopen would continue using the first proxy settings that it saw
    try:
        bounded(lambda: opener.open(request, timeout=PROBE_S).close(), PROBE_S)
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", None) or error)
    return None
