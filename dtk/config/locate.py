"""Resolves an import path without importing it, so that the parent reports an error before the ranks start."""

import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from diagnostics.contract.suggest import did_you_mean
from dtk.errors import DtkError

_WORD = re.compile(r"import \*|[^\W\d]\w*")
_DYNAMIC = {
    "globals", "locals", "vars", "exec", "eval", "setattr", "__getattr__", "__dict__", "modules", "import *",
}  # fmt: skip
"""Words in a module's source that may define names which do not occur in it."""


def locate(target: str) -> str:
    """Return the name of the module that contains the target, as far as known without executing code; DtkError if the
    module does not exist, or its source does not contain the name.
    """
    parts = target.split(".")
    # Ranks search the working directory first; the parent's console script does not.
    spec = _spec(parts[0], [str(Path.cwd()), *sys.path])
    if spec is None:
        raise cannot_import(target, f"No module named {parts[0]!r}")
    used = 1
    while used < len(parts) - 1 and spec.submodule_search_locations is not None:
        below = _spec(".".join(parts[: used + 1]), spec.submodule_search_locations)
        if below is None:
            break
        spec, used = below, used + 1
    module = ".".join(parts[:used])
    words = _words(spec)
    if words is not None and parts[used] not in words:
        raise DtkError(f'_target_={target}: "{parts[used]}" is not in {module}', fix=did_you_mean(parts[used], words))
    return module


def cannot_import(target: str, why: str) -> DtkError:
    """Return the error for a module that does not exist or fails to import."""
    return DtkError(f"_target_={target} cannot be imported", why, "run from the folder of your package, or install it")


def _spec(name: str, path: Sequence[str]) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except KeyError:  # A namespace package: its finder requires the parent, which is not imported.
            spec = ModuleSpec(name, None, is_package=True)
            below = (Path(folder) / name.rpartition(".")[2] for folder in path)
            spec.submodule_search_locations = [str(folder) for folder in below if folder.is_dir()]
        except (ImportError, AttributeError, ValueError):
            continue
        if spec is not None:
            return spec
    return None


def _words(spec: ModuleSpec) -> set[str] | None:
    """Return the words of a module's source; None if it cannot be read or may define further names."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        words = set(_WORD.findall(Path(spec.origin).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
    return None if words & _DYNAMIC else words
