"""Ends a rank's process with its parent, or at once when its work is done. Imports nothing slow."""

import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""
POLL_S = 1.0  # Chosen: costs nothing, and no orphan trains on.


def end_with(parent: int) -> None:
    """End this process when its parent has gone: SIGKILL gives a launcher no chance to end its ranks.

    On Linux the kernel does it, also while an import or a native call holds the interpreter; a thread does elsewhere.

    Args:
        parent: process id of the launcher, which may be gone already.
    """
    killed_with(parent)
    threading.Thread(target=_watch, args=(parent,), name="orphan-watch", daemon=True).start()


def killed_with(parent: int) -> None:
    """Let the kernel end this process with its parent, where it can; the program that it becomes by exec likewise."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def leave_process(code: int) -> NoReturn:
    """End a rank's process at once: gloo's threads may abort it while the interpreter is torn down."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # A full disk: what could not be printed does not make the run a failure.
            stream.flush()
    os._exit(code)


def tell(**record: Any) -> None:
    """One line for the parent, which reads it through `dtk.launch.children`."""
    print(json.dumps(record), flush=True)


def run_child(main: Callable[[], object]) -> NoReturn:
    """Run as a child of this project's own process: end with it, tell it what went wrong, and leave at once."""
    end_with(os.getppid())
    try:
        main()
    except Exception as error:
        tell(error=" ".join(str(error).split())[:300], type=type(error).__name__)
        traceback.print_exc()
        leave_process(1)
    leave_process(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)
