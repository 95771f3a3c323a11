"""`python -m dtk.rank RUN_FOLDER LAUNCHER_PID`: the process of a rank that dtk's launcher starts."""

import gc
import sys
from pathlib import Path

from dtk.orphan import end_with, leave_process


def main(run_folder: Path, launcher_pid: int) -> int:
    """Train; the exit code of the rank."""
    end_with(launcher_pid)
    # What importing torch makes lives to the end; walking it again and again is a third of the start.
    gc.disable()
    from dtk.rank.worker import main as work

    return work(run_folder)


if __name__ == "__main__":
    leave_process(main(Path(sys.argv[1]), int(sys.argv[2])))
