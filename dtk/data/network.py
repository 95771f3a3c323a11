"""Time limits for libraries that download: a machine without a network must not hang. Name resolution has no timeout of
its own, so it runs on a daemon thread that is abandoned when the time is up.
"""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

PROBE_S = 3.0  # Timeout for a server to answer at all, in seconds.


def bounded(work: Callable[[], T], limit_s: float) -> T:
    """Return what `work` returns, or raise what it raises; TimeoutError after `limit_s`, while its thread continues."""
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
    """Return why the server of this http(s) address cannot be reached, in a few words; None if it answers."""
    request = urllib.request.Request(url, method="HEAD")
    opener = urllib.request.build_opener()  # urlopen would keep using the first proxy settings that it read
    try:
        bounded(lambda: opener.open(request, timeout=PROBE_S).close(), PROBE_S)
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", None) or error)
    return None
