"""The process of a rank as a child of dtk: it ends with its parent and sends it JSON lines. Imports nothing slow."""

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

_PR_SET_PDEATHSIG = 1  # Constant of prctl(2).
POLL_S = 1.0  # Chosen: the checks cost nothing, and no orphan continues training.


def end_with(parent: int) -> None:
    """Terminate this process when its parent has exited: after SIGKILL a launcher cannot terminate its ranks.

    On Linux the kernel does it, even while an import or a native call holds the GIL; elsewhere a thread does.
    """
    killed_with(parent)
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def killed_with(parent: int) -> None:
    """Let the kernel kill this process with its parent, if supported; this also holds after exec."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def leave_process(code: int) -> NoReturn:
    """Exit a rank's process immediately: gloo's threads may abort it during interpreter shutdown."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # A full disk: output that could not be printed does not make the run a failure.
            stream.flush()
    os._exit(code)


def send_record(**record: Any) -> None:
    """Print one JSON line for the parent, which reads it through `dtk.launch.children`."""
    print(json.dumps(record), flush=True)


def run_child(main: Callable[[], object]) -> NoReturn:
    """Run as a child of a dtk process: exit with the parent, report errors to it, and exit immediately at the end."""
    end_with(os.getppid())
    try:
        main()
    except Exception as error:
        send_record(error=" ".join(str(error).split())[:300], type=type(error).__name__)
        traceback.print_exc()
        leave_process(1)
    leave_process(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)
