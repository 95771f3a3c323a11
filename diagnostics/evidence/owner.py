"""Whose a log, a stack dump or an error file is, by its place: only words that mean a rank count, never dates."""

import re
from pathlib import Path
from typing import NamedTuple

_RANK = re.compile(r"(?:^|[^a-z])rank[_\-. =]?(\d{1,7})(?!\d|[a-z](?![a-z]))", re.IGNORECASE)
_WORKER = re.compile(
    r"(?:^|[^a-z])(?:worker|process|proc|task|trainer|stderr|stdout)[_\-.=]?(\d{1,6})(?!\d)", re.IGNORECASE
)
_ATTEMPT = re.compile(r"attempt_(\d{1,6})")


class Owner(NamedTuple):
    """Whose file it is."""

    rank: int | None = None
    local_rank: int | None = None
    """Rank within a node: torchrun's `attempt_0/3/stderr.log`."""
    attempt: int | None = None
    node: str = ""
    """Folder above torchrun's attempts: one for each agent."""


def owner(relative: Path) -> Owner:
    """Return the rank, attempt and node that a path below the evidence's root states."""
    folders = relative.parts[:-1]
    attempt = next((int(match[1]) for part in folders if (match := _ATTEMPT.fullmatch(part))), None)
    match = _RANK.search(relative.name) or (_RANK.search(folders[-1]) if folders else None)
    if match:
        return Owner(int(match[1]), attempt=attempt)
    if len(folders) >= 2 and folders[-1].isdecimal() and len(folders[-1]) < 6 and _ATTEMPT.fullmatch(folders[-2]):
        return Owner(None, int(folders[-1]), attempt, "/".join(folders[:-2]))
    match = _WORKER.search(relative.name)
    return Owner(int(match[1]) if match else None, attempt=attempt)
