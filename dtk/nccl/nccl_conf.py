"""The files from which NCCL itself takes variables: $NCCL_CONF_FILE, else .nccl.conf in the home folder that the system
knows (not $HOME), then /etc/nccl.conf; a name that is set already stays (src/misc/param.cc).
"""

import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from diagnostics.analysis.environment.values import ConfFile, parse_conf
from diagnostics.contract.files import read_record

SYSTEM = Path("/etc/nccl.conf")
MOST_BYTES = 1 << 20  # Maximum size of a file; real ones have a few lines.


@dataclass(frozen=True, slots=True)
class Read:
    """One configuration file that exists."""

    path: Path
    content: ConfFile


def user_file(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the user's configuration file, whether it exists or not."""
    named = environment.get("NCCL_CONF_FILE")
    if named:
        return Path(named)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir) / ".nccl.conf"
    except KeyError:  # This container has no such user.
        return None


def read_user(environment: Mapping[str, str]) -> Read | None:
    """Read the user's configuration file; return None if it does not exist or cannot be read."""
    path = user_file(environment)
    return None if path is None else _read(path)


def read_system() -> Read | None:
    """Read the system's configuration file; return None if it does not exist or cannot be read."""
    return _read(SYSTEM)


def _read(path: Path) -> Read | None:
    with suppress(OSError, ValueError):
        return Read(path, parse_conf(read_record(path, MOST_BYTES).decode("utf-8", "replace")))
    return None
