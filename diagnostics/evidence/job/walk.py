"""Walks the diagnosed path: regular files only, in a fixed order, inside the folder, within bounds."""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from diagnostics.contract.files import table_beside
from diagnostics.evidence.job.registry import suffixes
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Problem

SKIPPED_FOLDERS, _NEVER = (frozenset[str](table_beside(__file__)[name]) for name in ("skipped_folders", "never"))
_NEVER_NAMES = re.compile(r"events\.out\.tfevents|^\.|^(?:merges|vocab)\.txt$|^requirements.*\.txt$|^LICENSE|^README")
_TEXT = frozenset({".log", ".txt"})
_NUMBER = re.compile(r"\d+")


def is_ruled_out(path: Path) -> bool:
    """Whether the name alone says that a file is no evidence."""
    return path.suffix.lower() in _NEVER or bool(_NEVER_NAMES.search(path.name))


class Walk(Struct):
    """One pass over all files below `root`."""

    root: Path
    limits: Limits
    problems: list[Problem]
    skipped: frozenset[str] = frozenset()
    """Paths relative to the root that are not entered."""
    seen: Counter[str] = field(default_factory=Counter)
    """Files by ending, those included that the name ruled out."""

    def files(self) -> Iterator[Path]:
        """Every file that may be evidence."""
        folders = [self.root]
        while folders:
            folder = folders.pop()
            inner = []
            try:
                with os.scandir(folder) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as problem:
                self._problem(folder, "cannot_list", why=problem.strerror or str(problem))
                continue
            files: set[str] = set()
            for entry in entries:
                with suppress(OSError):
                    files |= {_NUMBER.sub("#", entry.name)} if entry.is_file(follow_symlinks=False) else set()
            for entry in entries:
                path = Path(entry.path)
                kind = self._kind(entry, path)
                if kind == "folder":
                    inner.append(path)
                    if path.suffix.lower() in suffixes() | _TEXT or (
                        "#" in (like := _NUMBER.sub("#", entry.name)) and like in files
                    ):
                        self._problem(path, "folder_for_file")
                elif kind == "file":
                    if self.seen.total() >= self.limits.files:
                        self._problem(self.root, "too_many_files", most=self.limits.files)
                        return
                    self.seen[path.suffix.lower() or "without an ending"] += 1
                    if not is_ruled_out(path):
                        yield path
            folders += reversed(inner)

    def _kind(self, entry: os.DirEntry[str], path: Path) -> str:
        """`folder`, `file`, or `""` for what is left out."""
        try:
            if entry.is_symlink():
                # A link that stays within the folder is no loss: its target is found without it.
                try:
                    if not path.resolve(strict=True).is_relative_to(self.root):
                        self._problem(path, "link_out")
                except (OSError, RuntimeError):
                    self._problem(path, "link_nowhere")
                return ""
            if entry.is_dir(follow_symlinks=False):
                name = str(path.relative_to(self.root))
                return "" if entry.name in SKIPPED_FOLDERS or name in self.skipped else "folder"
            mode = entry.stat(follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode):
                if not stat.S_ISSOCK(mode):  # Sockets lie about in many folders, and nobody writes evidence into one.
                    self._problem(path, "named_pipe" if stat.S_ISFIFO(mode) else "device_file")
                return ""
            return "file"
        except OSError as problem:
            self._problem(path, "cannot_read", why=problem.strerror or str(problem))
            return ""

    def _problem(self, path: Path, about: str, **figures: object) -> None:
        self.problems.append(Problem("file", str(path.relative_to(self.root)), about, figures=figures))
