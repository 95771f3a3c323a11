"""Removes one run folder, if it may: the only code of dtk that deletes what a run recorded. Never follows a symbolic
link, never touches a folder that dtk did not create.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.formatting import clean
from diagnostics.runs.find import Run, looks_like_run, made_by_dtk, still_runs
from diagnostics.runs.records import mapping

_LAST = ("manifest.json", "status.json")
"""Files removed last, so that an interrupted removal leaves a run folder that can still be removed."""


@dataclass(frozen=True, slots=True)
class Size:
    """Contents of a folder, without following links."""

    files: int
    bytes: int


def refusal(run: Run, *, force: bool) -> str:
    """Return why a run may not be removed, in one line; empty when it may. `force`: also a running or damaged one."""
    path = Path(run.path)
    if path.is_symlink():
        return f"{path} is a symbolic link, and links are not followed"
    if not made_by_dtk(path):
        evidence = " according to its status.json and manifest.json" if looks_like_run(path) else ""
        return f"{path} is not a run folder that dtk created{evidence}"
    if Path.cwd().resolve().is_relative_to(path.resolve()):
        return f"{path} is or contains the current directory"
    if path.is_mount():
        return f"{path} is a mount point"
    if force:
        return ""
    if run.unreadable:
        return f"{clean(run.unreadable)} (--force removes it)"
    if run.state == "queued":
        return f"{path} waits for its scheduler; cancel the job first (--force removes it anyway)"
    if run.state == "running":
        manifest = mapping(str(RunPaths(path).manifest), [])
        runs = still_runs(manifest) is True
        where = f"process {clean(manifest.get('pid'))[:20]}" if runs else "apparently on another machine"
        return f"{path} is still running ({where}); stop it first (--force removes it anyway)"
    return ""


def size_of(path: Path) -> Size:
    """Return files and bytes below a folder, links not followed; what cannot be read does not count."""
    files = total = 0
    folders = [str(path)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        files += 1
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return Size(files, total)


def remove(path: Path) -> None:
    """Delete a run folder, its status and manifest last; OSError if something in it cannot be removed."""
    if path.is_symlink() or not path.is_dir():
        raise NotADirectoryError(f"{path} is not a folder")
    with os.scandir(path) as entries:
        ordered = sorted(entries, key=lambda entry: (entry.name in _LAST, entry.name))
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()
    path.rmdir()
