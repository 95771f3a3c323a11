"""Python stacks of all threads, when a rank fails."""

import faulthandler
import time
from pathlib import Path


def dump_stacks(path: Path) -> None:
    """Write the stacks of all threads of this process, the newest frame of each first.

    Raises:
        OSError: the folder is full or read-only.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        print(f"# stacks at {time.time():.3f} s since 1970", file=file, flush=True)
        faulthandler.dump_traceback(file, all_threads=True)
