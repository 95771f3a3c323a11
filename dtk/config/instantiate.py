"""`_target_`: imports a name and calls it if an allow list permits it, as a configuration may be untrusted. The parent
only locates the name, without importing it, and reports an error before the ranks start.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from diagnostics.contract.suggest import did_you_mean
from dtk.config.schema import Config
from dtk.errors import DtkError, Errors

_errors = Errors(__file__)
ALLOWED = ("dtk.models.*", "dtk.tasks.*", "dtk.train.callbacks.*", "dtk.train.builtin.*", "torch.nn.*", "torch.optim.*")
"""Prefixes that need no `allow_targets`; below them only classes of the expected kind are accepted."""
_WORD = re.compile(r"import \*|[^\W\d]\w*")
_DYNAMIC = {
    "globals", "locals", "vars", "exec", "eval", "setattr", "__getattr__", "__dict__", "modules", "import *",
}  # fmt: skip
"""Words in a module's source that may define names which do not occur in it."""


def instantiate(target: str, arguments: dict[str, Any], allow: list[str], kind: type = object) -> Any:
    """Import `target` and call it with keyword arguments.

    `allow` are import paths, or prefixes that end in `.*`, in addition to `ALLOWED`. The signature and the base class
    `kind` are checked before the call. DtkError if the target is not allowed, does not exist, is not a class of this
    kind, or does not accept these arguments. Exceptions of the target itself, the user's code, propagate unchanged.
    """
    return find_class(target, arguments, allow, kind)(**arguments)


def check_target(target: str, arguments: dict[str, Any], allow: list[str]) -> None:
    """Check what `instantiate` checks, as far as possible without importing or calling anything.

    Arguments are checked only if the module is imported already. DtkError if not allowed, or certainly absent.
    """
    _check_allowed(target, allow)
    if locate(target) in sys.modules:
        find_class(target, arguments, allow)


def check_targets(config: Config) -> None:
    """Run `check_target` for every `_target_` of a configuration; DtkError for the first that is rejected."""
    sections = config.model, config.task, config.data, config.optimizer, config.schedule, config.tracker
    for section in (*sections, *config.callbacks):
        if target := getattr(section, "_target_", None):
            added = {"params": [], "lr": 0.0} if section is config.optimizer else {}
            arguments = getattr(section, "constructor", section.arguments)
            check_target(target, {**added, **arguments}, config.allow_targets)


def _check_allowed(target: str, allow: list[str]) -> None:
    """Reject a target that is not an import path of a public name, or not on the allow list."""
    parts = target.split(".")
    rules = {
        "no_path": len(parts) < 2 or not all(part.isidentifier() for part in parts),
        "private": any(part.startswith("_") for part in parts),
        "unlisted": not _listed(target, allow),
    }
    _errors.refuse(rules, target=target, package=parts[0])


def find_class(target: str, arguments: dict[str, Any], allow: list[str], kind: type = object) -> Any:
    """Import the class that a target names, after every check that needs no call; DtkError as from `instantiate`."""
    _check_allowed(target, allow)
    named = _find(target)
    if not isinstance(named, type):
        raise _errors("no_class", target=target, kind=type(named).__name__)
    # A module also contains its imports: dtk.launch.local.subprocess.run must not count as dtk's.
    home = f"{getattr(named, '__module__', None)}.{getattr(named, '__qualname__', '')}"
    if target not in allow and not _listed(home, allow):
        fix = f"allow this name: 'allow_targets=[{target}]'"
        module, _, name = home.rpartition(".")
        public = not any(part.startswith("_") for part in home.split("."))
        if public and getattr(sys.modules.get(module), name, None) is named:
            fix = f"use its own import path: _target_={home} 'allow_targets=[{home.split('.')[0]}.*]'"
        raise _errors("elsewhere", target=target, home=home, fix=fix)
    base = f"{kind.__module__}.{kind.__qualname__}"
    _errors.refuse({"base": not issubclass(named, kind)}, target=target, base=base)
    _check_arguments(target, named, arguments)
    return named


def _listed(target: str, allow: list[str]) -> bool:
    prefixes = tuple(entry[:-1] for entry in (*ALLOWED, *allow) if entry.endswith(".*"))
    return target in (*ALLOWED, *allow) or target.startswith(prefixes)


def _find(target: str) -> Any:
    """Import the module of a target, then follow attributes that are classes, never modules."""
    module = locate(target)
    value: Any = _import(module, target)
    for part in target.removeprefix(f"{module}.").split("."):
        if not hasattr(value, part):
            raise _errors("absent", target=target, part=part, owner=module, near=did_you_mean(part, dir(value)))
        value = getattr(value, part)
        if isinstance(value, ModuleType):
            raise _errors("imported", target=target, module=value.__name__)
    return value


def _import(name: str, target: str) -> ModuleType:
    # As in a rank, which `python -m` starts; console scripts and `python -P` omit the working directory.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise cannot_import(target, str(error)) from error


def _check_arguments(target: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return  # written in C without a signature: the call itself will check
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in named]
    for name in arguments:
        if name not in names and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            near = did_you_mean(name, names) or f"it takes {', '.join(names) or 'none'}"
            raise _errors("argument", target=target, name=name, near=near)
    lacking = [p.name for p in named if p.default is p.empty and p.name not in arguments]
    _errors.refuse({"lacking": lacking}, target=target, lacking=lacking)


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
