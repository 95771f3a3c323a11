"""`dtk watch -- COMMAND`: options and the folder of the job. `dtk.launch.watched` runs the command."""

import argparse
import secrets
import shlex
import shutil
import time
from pathlib import Path

from dtk.errors import Errors, refused

_errors = Errors(__file__)
FOLDERS = Path("dtk-watch")
STALL_TIMEOUT_S = 300  # Half of torch's NCCL timeout (600 s), so that the watch reports first.
START_TIMES = 3  # A start may take longer than anything later: packages, downloads, data, all of them cold.
VALUES = {"stall_timeout_s": STALL_TIMEOUT_S, "start_times": START_TIMES, "folders": FOLDERS}


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and report a failure or a stall; DtkError if the command or the folder cannot be used."""
    argv: list[str] = arguments.wrapped
    _errors.refuse({"no_command": not argv})
    program, typed = argv[0], shlex.join(argv)
    _errors.refuse({"own_watch": Path(program).name == "dtk" and argv[1:2] == ["run"]}, typed=typed)
    if shutil.which(program) is None:
        is_script = program.endswith(".py") and Path(program).is_file()
        raise _errors("script" if is_script else "unknown", program=program, typed=typed)
    from dtk.launch.watched import run_watched

    stall_s: float = arguments.stall_timeout_s
    start_s: float = arguments.start_timeout_s or START_TIMES * stall_s
    return run_watched(argv, make_folder(arguments.folder, FOLDERS, "flight"), stall_s, start_s)


def make_folder(chosen: Path | None, folders: Path, holds: str, mode: int = 0o777) -> Path:
    """Create a folder for the records of a job, unless another node has already created it, and return it; DtkError if
    it cannot be created, or was used before.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder = (chosen or folders / name).expanduser().absolute()
    with refused(f"cannot make {folder}", "choose another --folder"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=mode, exist_ok=True)
        _errors.refuse({"taken": (folder / holds).exists()}, chosen=chosen)
    return folder
