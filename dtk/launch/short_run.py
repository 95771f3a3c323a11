"""A short run of dtk in a subprocess, for commands that try something: started, read, and always removed."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from diagnostics.contract.formatting import override
from diagnostics.runs.find import Details
from diagnostics.runs.records import number
from dtk.errors import USER_ERROR, DtkError
from dtk.launch.processes import importable
from dtk.rank.child import killed_with

QUIET = ("train.evaluate_every=-1", "checkpoint=off", "tracker=none")
"""Overrides with which a run writes nothing except its records."""
_END_S = (2.0, 15.0, 5.0)
"""Chosen: time to exit by itself, as Ctrl-C has reached it too, after a request (with a checkpoint), and another."""


def run_short(arguments: Sequence[str], home: Path) -> Path:
    """Run `dtk run` to its end and return its folder below `home`; DtkError with its error if it could not start."""
    before = folders(home)
    process = subprocess.Popen(
        [sys.executable, "-m", "dtk.run", *arguments, override("runs_folder", home.absolute())],
        env=importable(os.environ), text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        preexec_fn=partial(killed_with, os.getpid()),  # Measurements of an orphan would not be read.
    )  # fmt: skip
    try:
        _, errors = process.communicate()
    except BaseException:  # The run never outlives this call.
        for wait_s in _END_S:  # A second request makes a run kill its ranks immediately.
            with suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
                break
            process.terminate()
        else:
            process.kill()
            process.wait()
        raise
    new_folders = sorted(folders(home) - before)
    if not new_folders or process.returncode == USER_ERROR:
        line = (errors.strip().splitlines() or ["it left no run folder"])[-1].removeprefix("dtk: ")
        raise DtkError("a short run could not start", line, f"tried: dtk run {shlex.join(arguments)}")
    return new_folders[-1]


def speed_and_peak(run: Details) -> tuple[float | None, float | None]:
    """Return tokens/s, and the peak memory in bytes of the rank with the most; None if not measured."""
    figures = {**run.last_metrics, **run.summary}
    ranks = figures.get("peak_memory_bytes_per_rank")
    peak = max(ranks) if isinstance(ranks, list) and ranks else figures.get("peak_memory_bytes")
    return number(figures.get("tokens_per_s")), number(peak)


def folders(home: Path) -> set[Path]:
    """Return the folders in a folder, which may be absent."""
    return {entry for entry in home.iterdir() if entry.is_dir()} if home.is_dir() else set()
