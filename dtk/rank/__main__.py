"""`python -m dtk.rank RUN_FOLDER LAUNCHER_PID RESTARTS`: the process of a rank that dtk's launcher starts."""

import gc
import os
import sys
from pathlib import Path

from dtk.rank.child import end_with, leave_process


def main(run_folder: Path, launcher_pid: int, restarts: str) -> int:
    """Train and return the exit code of the rank."""
    end_with(launcher_pid)
    os.environ["TORCHELASTIC_RESTART_COUNT"] = restarts  # The agent's is that of one attempt.
    # Objects of torch's import live to the end; scanning them repeatedly is a third of the start-up time.
    gc.disable()
    from dtk.rank.worker import main as work

    return work(run_folder)


if __name__ == "__main__":
    leave_process(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
