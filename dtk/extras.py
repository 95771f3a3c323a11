"""The optional part of dtk that trains: whether it is installed. Imports none of it."""

from importlib.util import find_spec

from dtk.errors import DtkError
from dtk.words import install

NEEDED = ("torch", "hydra", "numpy", "yaml")
"""Modules without which nothing can be trained or planned; the base install has not all of them."""


def require_training(what: str) -> None:
    """Make sure that `what` can run here.

    Raises:
        DtkError: the training extra is not installed.
    """
    if any(find_spec(module) is None for module in NEEDED):
        raise DtkError(f"{what} the training extra", fix=install("train"))
