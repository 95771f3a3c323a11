"""Commands and paths as the user would type them in this shell, so that every hint can be pasted."""

import json
import os
import re
import shlex
import shutil
import site
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

_PLAIN = re.compile(r"(?!(?i:null|true|false|[+-]?(inf|nan|[0-9][0-9_.e+-]*))$)[A-Za-z0-9_./+@-]+")
"""Values that Hydra's grammar accepts without quotes and parses as strings."""


def typed(path: Path) -> Path:
    """Return the path as the user would type it, relative if it is below the working directory."""
    with suppress(OSError, ValueError):  # Not below it, or the working directory no longer exists.
        return path.relative_to(Path.cwd())
    return path


def command(*arguments: object, name: str = "dtk") -> str:
    """Return a command line for a shell, quoted where necessary; the package of `name` also supports `python -m`."""
    return " ".join([_program(name), *(shlex.quote(str(argument)) for argument in arguments)])


def override(key: str, value: object) -> str:
    """Return `key=value` for `dtk run`, quoted for Hydra's grammar if necessary."""
    text = str(value)
    return f"{key}={text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)}"


def _program(name: str) -> str:
    """Return the bare name if PATH finds this environment's script, else its path, else `python -m NAME`."""
    schemes = [sysconfig.get_default_scheme()]
    if site.ENABLE_USER_SITE:
        schemes.append(sysconfig.get_preferred_scheme("user"))
    folders = [Path(sysconfig.get_path("scripts", scheme)) for scheme in schemes]
    scripts = [script for folder in folders if (script := folder / name).is_file()]
    on_path, python = shutil.which(name), shutil.which("python")
    with suppress(OSError):
        if on_path is not None and any(script.samefile(on_path) for script in scripts):
            return name
    if scripts:
        return shlex.quote(_as_program(scripts[0]))
    if not sys.executable:
        return f"python -m {name}"
    with suppress(OSError):  # Compare the folders, as links point outside a virtual environment.
        if python is not None and Path(python).parent.samefile(Path(sys.executable).parent):
            return f"python -m {name}"
    return f"{shlex.quote(_as_program(Path(sys.executable)))} -m {name}"


def _as_program(path: Path) -> str:
    text = str(typed(path))
    return text if os.sep in text else f".{os.sep}{text}"
