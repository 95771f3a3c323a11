"""First on PYTHONPATH under `dtk watch`: waits in every Python process of the job for torch.distributed.

A process that never imports it pays one comparison per import. Where a process group is made, `dtk.record.attach`
is loaded and takes over. Runs in the script's own Python, of any version, so it knows neither torch nor dtk.
"""
# Neither pathlib nor anything else is imported for nothing, and old Pythons must be able to read this.
# ruff: noqa: PTH100, PTH112, PTH118, PTH120, UP031, UP037

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
"""Where the packages dtk and diagnostics lie; not put on the script's path, as its own packages may lie there too."""
AWAITED = "torch.distributed.distributed_c10d"
OLDEST = (3, 11)


class Awaiting:
    """Meta path finder that leaves the search to the others and adds a step after the awaited module has run."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Spec of the awaited module; None for all others."""
        if name != AWAITED:
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            _then(spec.loader, wrap)
        return spec


class Own:
    """Meta path finder for dtk's two packages while they are loaded."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Spec of one of the packages; None for all other modules."""
        if name not in ("dtk", "diagnostics"):
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [ROOT])


def _then(loader: "Any", step: "Any") -> None:
    """Let a loader run its module as ever, and then a step with it."""
    run = loader.exec_module

    def exec_module(module: "Any") -> None:
        del loader.exec_module
        run(module)
        step(module)

    loader.exec_module = exec_module


def wrap(c10d: "Any") -> None:
    """Let the watch begin and end with the process group."""
    import functools

    init, destroy = c10d.init_process_group, c10d.destroy_process_group
    attached: "list[Any]" = []

    @functools.wraps(init)
    def init_process_group(*args: "Any", **kwargs: "Any") -> "Any":
        result = init(*args, **kwargs)
        try:
            if not attached and "dtk.record.recorder" not in sys.modules:  # a run of dtk watches itself
                attached.append(load().attach())
        except Exception as problem:
            sys.stderr.write("dtk watch: a rank is not watched: %s: %s\n" % (type(problem).__name__, problem))
        return result

    @functools.wraps(destroy)
    def destroy_process_group(group: "Any" = None) -> "Any":
        if attached and group in (None, c10d.GroupMember.WORLD):
            attached.pop().detach()
        return destroy(group)

    c10d.init_process_group, c10d.destroy_process_group = init_process_group, destroy_process_group


def load() -> "Any":
    """The module `dtk.record.attach`.

    `diagnostics` is taken out of the table of modules again, as the script may have a package of that name.

    Raises:
        RuntimeError: the script's Python is too old, or it has a module named dtk.
    """
    if sys.version_info < OLDEST:
        raise RuntimeError("its Python is older than %d.%d" % OLDEST)
    import importlib
    from importlib.machinery import PathFinder

    other = PathFinder.find_spec("dtk")
    if other is not None and not os.path.isdir(os.path.join(os.path.dirname(other.origin or ""), "record")):
        raise RuntimeError("the script has a module named dtk: %s" % other.origin)
    finder: "Any" = Own()
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "diagnostics"}
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module("dtk.record.attach")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "diagnostics"]:
            del sys.modules[name]
        sys.modules.update(kept)


def chain() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    hidden = sys.modules.pop("sitecustomize")
    try:
        importer = __import__
        importer("sitecustomize")
    except ModuleNotFoundError as problem:
        if problem.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", hidden)


if "DTK_WATCH_FOLDER" in os.environ:
    sys.meta_path.insert(0, Awaiting())
if __name__ == "sitecustomize":
    chain()
