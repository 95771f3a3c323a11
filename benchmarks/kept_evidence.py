"""A plugin of pytest that keeps each folder that a test reads evidence from: pytest -p benchmarks.kept_evidence tests.

The folders are copied into the one that the environment variable KEEP_EVIDENCE names. The hash of what they hold is
their name, so that each is kept once. Large folders and those with links or pipes, which test limits, are left out.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnostics.evidence.job import gather as module
from diagnostics.evidence.model import Evidence

MOST_BYTES = 1 << 20  # Folders of tests that separate causes are smaller; larger ones are about speed and memory.
_gather = module.gather


def keep(folder: Path, kept: Path) -> None:
    """Copy a folder, with the times of its files; OSError if it changes meanwhile."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    if not files or not all(path.is_file() and not path.is_symlink() for path in files):
        return
    if sum(path.stat().st_size for path in files) > MOST_BYTES:
        return
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    target = kept / digest.hexdigest()[:16]
    if not target.exists():
        temporary = kept / f".{target.name}.{os.getpid()}"
        shutil.copytree(folder, temporary)
        temporary.rename(target)


def gather_and_keep(path: Path, *others: Any, **options: Any) -> Evidence:
    """Read the evidence below a path as the test asks for it, and keep it."""
    with suppress(OSError):
        if Path(path).is_dir():
            keep(Path(path), Path(os.environ["KEEP_EVIDENCE"]))
    return _gather(path, *others, **options)


module.gather = gather_and_keep
