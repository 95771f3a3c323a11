"""How `dtk watch` configures the ranks, and asks them before it stops a job. Never imports torch."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from diagnostics.contract.artifacts import RunPaths, write_json
from dtk.record.guard import bounded, guarded

FOLDER, STALL_TIMEOUT_S = "DTK_WATCH_FOLDER", "DTK_WATCH_STALL_TIMEOUT_S"
_INJECT = Path(__file__).resolve().parent / "inject"
STANDS_S = 5.0  # Chosen: a rank that moved or worked less than this before the request does not hang.
DUMP_S = 2.0  # Chosen: a working disk answers in some 10 ms.


def watch_variables(paths: RunPaths, stall_timeout_s: float) -> dict[str, str]:
    """Return variables for the ranks; the first entry of PYTHONPATH loads the watch in their Python."""
    path = os.pathsep.join(filter(None, (str(_INJECT), os.environ.get("PYTHONPATH"))))
    return {FOLDER: str(paths.root), STALL_TIMEOUT_S: repr(stall_timeout_s), "PYTHONPATH": path}


def watched_run() -> tuple[RunPaths, float]:
    """Return this rank's run folder, and its stall timeout in seconds; KeyError if this process is not watched."""
    return RunPaths(Path(os.environ[FOLDER])), float(os.environ[STALL_TIMEOUT_S])


def watched_processes(paths: RunPaths) -> list[int]:
    """Return the processes of this host that run under the watch of this folder: they inherited its variables."""
    entry, pids = f"{FOLDER}={paths.root}".encode(), []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):  # It has exited, or belongs to another user.
            if folder.name.isdecimal() and entry in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return pids


@dataclass(eq=False)
class StallAnswer:
    """Polls for a request and answers it once."""

    paths: RunPaths
    rank: int
    dump: Callable[[], None]
    _answered: bool = False

    def answer(self, idle_s: float, inside: bool) -> None:
        """Dump if this rank is stalled, then answer."""
        if self._answered or not self.paths.question.exists():
            return
        self._answered = True
        with guarded("answer"):
            if idle_s >= STANDS_S:
                bounded("last dumps", self.dump, DUMP_S)
            write_json(self.paths.answer(self.rank), {"idle_s": idle_s, "inside": inside})
