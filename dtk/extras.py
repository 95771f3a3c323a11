"""The optional dependencies of training: whether they are installed and can be imported."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from diagnostics.contract.formatting import command
from dtk.errors import DtkError

NEEDED = ("torch", "hydra", "numpy", "yaml")
"""Modules that training and planning need; the base install lacks some of them."""


def install(extra: str) -> str:
    """Return the command that installs an optional part of dtk."""
    return f"pip install 'dtk-train[{extra}]' (from a clone: pip install '.[{extra}]')"


def require(package: str, user: str, extra: str, instead: str = "") -> None:
    """Make sure that a package is installed, which `user` needs; DtkError with the command that installs its extra."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # A plain folder of that name, such as the ./wandb created by W&B.
        distribution = package.replace("_", "-")
        raise DtkError(f"{user} needs the package {distribution}", fix=f"{install(extra)}{instead}")


def installed(package: str) -> str | None:
    """Return the version of an installed distribution, without importing it; None if it is absent."""
    from importlib.metadata import PackageNotFoundError, version  # It takes a tenth of the time of a small command.

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def require_training(what: str) -> None:
    """Make sure that `what` can run here; DtkError if the training extra is not installed."""
    if any(find_spec(module) is None for module in NEEDED):
        raise DtkError(f"{what} the training extra", fix=install("train"))


def load(package: str) -> Any:
    """Import a package, which takes seconds for large ones; DtkError if it is installed, but broken."""
    try:
        return import_module(package)
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        fix = f"{command('doctor', '--only', 'versions')} looks closer"
        raise DtkError(f"{package} cannot be imported", why, fix) from error
