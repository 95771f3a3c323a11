"""`python -m dtk.rank RUN_FOLDER`: the process of a rank that dtk's launcher starts.

Owns what must come before torch and after training; what a rank does is `dtk.rank.worker`'s.
"""

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path


def main(run_folder: Path) -> int:
    """Train; the exit code of the rank."""
    # What importing torch makes lives to the end; walking it again and again is a third of the start.
    gc.disable()
    from dtk.rank.worker import main as work

    return work(run_folder)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # A full disk: what could not be printed does not make the run a failure.
            stream.flush()
    # Gloo's threads may abort the process while the interpreter is torn down; everything is written.
    os._exit(code)
