"""Finds what an import path names without importing it, so that the parent sees a mistake before the ranks start."""

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from dtk.config.suggest import did_you_mean
from dtk.errors import DtkError

_DYNAMIC = {"globals", "locals", "vars", "exec", "eval", "setattr", "__getattr__", "__dict__", "modules"}
"""Names in a module's source that may define further ones."""


def locate(target: str) -> str:
    """Name of the module that has the target, as far as that can be said without running any code.

    Args:
        target: dotted import path of a class or function.

    Raises:
        DtkError: there is no such module, or its source certainly lacks the name.
    """
    parts = target.split(".")
    # The ranks look into the working directory first; the console script of the parent does not.
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
    names = _names(spec)
    if names is not None and parts[used] not in names:
        raise DtkError(f'_target_={target}: "{parts[used]}" is not in {module}', fix=did_you_mean(parts[used], names))
    return module


def cannot_import(target: str, why: str) -> DtkError:
    """Return the error for a module that does not exist or fails to import."""
    return DtkError(f"_target_={target} cannot be imported", why, "run from the folder of your package, or install it")


def _spec(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """Where a module lies, by the finders that an import would ask."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except KeyError:  # A namespace package: its finder asks for the parent, which nobody has imported.
            spec = ModuleSpec(name, None, is_package=True)
            below = (Path(folder) / name.rpartition(".")[2] for folder in path)
            spec.submodule_search_locations = [str(folder) for folder in below if folder.is_dir()]
        except (ImportError, AttributeError, ValueError):
            continue
        if spec is not None:
            return spec
    return None


def _names(spec: ModuleSpec) -> set[str] | None:
    """Return the names that the module's source defines; None if it cannot be read or may define more at run time."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    mentioned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    mentioned |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = set(_bound(tree.body))
    return None if "*" in names or _DYNAMIC & (mentioned | names) else names


def _bound(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Names that statements bind on their level, in whichever branch."""
    scopes = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for statement in body:
        # Every name that is stored anywhere inside, which may be too many, and never too few.
        for node in [statement] if isinstance(statement, scopes) else ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Import | ast.ImportFrom):
                yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, scopes | ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
                yield node.name
