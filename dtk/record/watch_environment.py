"""The variables through which `dtk watch` configures the ranks, written and read here. Never imports torch."""

import os
from pathlib import Path

from diagnostics.contract.artifacts import RunPaths

FOLDER, STALL_TIMEOUT_S = "DTK_WATCH_FOLDER", "DTK_WATCH_STALL_TIMEOUT_S"
_INJECT = Path(__file__).resolve().parent / "inject"


def watch_variables(paths: RunPaths, stall_timeout_s: float) -> dict[str, str]:
    """Return variables for the ranks; the first entry of PYTHONPATH makes their Python listen."""
    path = os.pathsep.join(filter(None, (str(_INJECT), os.environ.get("PYTHONPATH"))))
    return {FOLDER: str(paths.root), STALL_TIMEOUT_S: repr(stall_timeout_s), "PYTHONPATH": path}


def watched_run() -> tuple[RunPaths, float]:
    """Return where this rank writes, and its limit in seconds.

    Raises:
        KeyError: it is not watched.
    """
    return RunPaths(Path(os.environ[FOLDER])), float(os.environ[STALL_TIMEOUT_S])


def is_watched(pid: int, paths: RunPaths) -> bool:
    """Whether a process of this host runs under the watch of this folder; false where the system does not tell.

    Raises:
        OSError: it is gone, or someone else's.
    """
    return f"{FOLDER}={paths.root}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
