"""Which files in a repository are dtk's own output, so no change of its code. Knows no git and no run's content."""

import itertools
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from diagnostics.runs.find import made_by_dtk

PAGES = ("dtk-report.html", "dtk-comparison.html", "dtk-bench-comm.html", "dtk-preflight.html")
"""What dtk calls pages that it writes where it stands."""
_MOST_CHILDREN = 1000  # Folders of a folder that are looked at.


def without_runs(root: Path, new: Iterable[bytes], tracked: Iterable[bytes], standing: Path) -> list[bytes]:
    """Return the files that are neither in a run folder nor in a folder that holds run folders.

    A folder with tracked files, or the one where the user stands, is one of code whatever it holds; the run folders in
    it are not.

    Args:
        root: of the repository.
        new: files that git does not track, relative to it.
        tracked: those that it does.
        standing: the working folder.
    """
    code = {b"", *_above(os.fsencode(os.path.relpath(standing.resolve(), root.resolve())) + b"/")}
    for name in tracked:
        folder = name.rpartition(b"/")[0]
        while folder not in code:
            code.add(folder)
            folder = folder.rpartition(b"/")[0]
    is_own: dict[bytes, bool] = {}

    def own(folder: bytes) -> bool:
        if folder not in is_own:
            path = root / os.fsdecode(folder)
            is_own[folder] = _one_run(path) or (folder not in code and _holds_runs(path))
        return is_own[folder]

    return [name for name in new if not any(own(folder) for folder in _above(name))]


def _above(name: bytes) -> list[bytes]:
    """Return the folders that contain a file, the outermost first."""
    parts = name.split(b"/")[:-1]
    return [b"/".join(parts[: n + 1]) for n in range(len(parts))]


def _one_run(path: Path) -> bool:
    """Return whether the path is a run folder or the record of a sweep."""
    return made_by_dtk(path) or ((path / "sweep.json").is_file() and (path / "points").is_dir())


def _holds_runs(path: Path) -> bool:
    with suppress(OSError), os.scandir(path) as entries:
        folders = [Path(entry.path) for entry in itertools.islice(entries, _MOST_CHILDREN) if entry.is_dir()]
        return any(map(_one_run, folders))
    return False
