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


def read(path: Path | None) -> Read | None:
    """Read a configuration file; return None if there is no such file, or it cannot be read."""
    with suppress(OSError, ValueError):
        if path is not None:
            return Read(path, parse_conf(read_record(path, MOST_BYTES).decode("utf-8", "replace")))
    return None
